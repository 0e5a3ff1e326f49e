"""Commands on games: `lmgym games list`, `measure` and `play`.

May import everything in lmgym but no stage.
"""
