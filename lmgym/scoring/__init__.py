"""Scores of replies: scorers, ensembles, calls with retries, best of n.

May import world and what is below it.
"""
