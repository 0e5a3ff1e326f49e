"""The simulated app: its language, users, bots, days and A/B tests.

May import generation and what is below it.
"""
