"""Debates: formats, quotes, transcripts, questions, and the environment of a round.

May import lmgym.environments.debate.prompts and what is below lmgym.environments, and that too.
"""
