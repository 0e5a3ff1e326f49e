"""`lmgym from-trl`: settings of another library, read from its scripts and configs without running them.

May import the base layer, and lmgym.runs to end its command.
"""
