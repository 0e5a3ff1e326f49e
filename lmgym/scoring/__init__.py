"""Scores of replies: scorers, ensembles, calls with retries, best of n.

May import generation and what is below it.
"""
