"""Commands on dialogue games: `lmgym dialogue list`, `play` and `rows`.

May import everything in lmgym but no stage.
"""
