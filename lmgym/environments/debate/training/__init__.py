"""Rows to train debaters on: speeches for SFT, pairs with preferences, and trees of rounds.

May import lmgym.environments.debate, its players and its tournament, and what is below them.
"""
