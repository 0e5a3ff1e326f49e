"""Tournaments: who meets whom about what, rounds in batches, their files, and figures.

May import lmgym.environments.debate.players and what is below it.
"""
