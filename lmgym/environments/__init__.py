"""Environments: the protocol, scored chat, games, reward functions, and the rollout engine that plays episodes.

May import scoring and what is below it.
"""
