"""How long tests wait for what a working program does, however busy the machine: the limit of a hang, and no bar."""

PATIENCE = 560.0
"""seconds; a command of a user's may run for 600 here"""
