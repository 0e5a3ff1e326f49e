"""`lmgym agree`: whether a judge, or any other scorer, agrees with people.

May import the audit app, the core and the stages.
"""
