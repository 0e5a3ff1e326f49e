"""Environments: the protocol, scored chat, reward functions, and the engine that plays episodes.

May import scoring and what is below it.
"""
