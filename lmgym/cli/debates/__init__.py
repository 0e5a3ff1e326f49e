"""The experiments of `lmgym debate`.

May import lmgym.environments.debate and what is below it.
"""
