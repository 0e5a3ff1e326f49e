"""The `lmgym` command: it trains, scores, lists runs, and mounts the commands of apps.

May import everything; stages only inside its functions.
"""
