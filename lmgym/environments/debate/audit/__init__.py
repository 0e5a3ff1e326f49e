"""Audits of judges: what moves a verdict though it says nothing about the answer.

May import lmgym.environments.debate.tournament and what is below it.
"""
