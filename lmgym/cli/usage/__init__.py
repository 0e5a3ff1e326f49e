"""Groups of commands and how they refuse wrong usage.

May import the base layer and `lmgym/runs`.
"""
