"""Games of a clembench checkout, in subprocesses of an environment with clemcore.

worker.py imports nothing of lmgym.
"""
