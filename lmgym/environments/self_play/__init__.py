"""Two sides of a game: one policy for both, frozen opponents, matches between policies.

May import the environments, their games, and what is below them.
"""
