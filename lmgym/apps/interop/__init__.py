"""Environments of other libraries here, and ours in other libraries: Gymnasium, PettingZoo, OpenEnv, verifiers, TRL.

May import the core and, of the apps, `games`.
"""
