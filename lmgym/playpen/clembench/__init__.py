"""Games of a clembench checkout, in subprocesses of an environment with clemcore.

May import lmgym.playpen and what is below it; worker.py imports nothing of lmgym.
"""
