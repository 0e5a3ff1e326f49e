"""The scorer workbench: scorecards on published suites, audits of biases, attacks.

May import the core and the stages.
"""
