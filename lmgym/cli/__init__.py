"""The `lmgym` command.

May import everything; stages only inside its functions.
"""
