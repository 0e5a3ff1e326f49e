"""Games: toy and arena games, dialogue games, self-play, and the ratings of their players.

May import the core and the stages.
"""
