"""report.html of a tournament: figures, ratings, and its rounds to read, side by side and with their quotes.

May import lmgym.environments.debate and what is below it.
"""
