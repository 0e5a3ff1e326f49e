"""Playpen: players and dialogue games that they play together, the records of the episodes, and the scores of suites.

May import environments and generation, what is below them, and lmgym.playpen.registries.
"""
