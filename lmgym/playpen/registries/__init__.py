"""What Playpen's commands know by name: models, games and API keys.

May import the base layer, lmgym.runs and environments.
"""
