"""The simulated app: its language, users, bots, days and A/B tests, and the demo.

May import the core and the stages.
"""
