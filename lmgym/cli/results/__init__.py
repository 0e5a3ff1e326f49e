"""Commands on what runs have left: `lmgym runs`, `compare`, `watch` and `report`.

May import everything in lmgym but no stage.
"""
