"""Playpen's commands: `playpen`, `clem` and `lmgym playpen`.

May import everything in lmgym but no stage.
"""
