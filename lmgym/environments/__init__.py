"""Where episodes come from: the Environment protocol, scored chat, games, the rollout engine.

May import scoring and what is below it.
"""
