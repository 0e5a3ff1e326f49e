"""Debate: rounds between debaters before a judge, tournaments, audits of judges, and training on debates.

May import the core and the stages, and of the apps `audit`.
"""
