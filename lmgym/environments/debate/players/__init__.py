"""Players of debates: debaters and judges, scripted, recorded, human, or models of any kind.

May import lmgym.environments.debate and what is below it.
"""
