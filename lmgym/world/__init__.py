"""The simulated app: its language, users, bots, days and A/B tests.

May import scoring and what is below it.
"""
