"""report.html of a tournament: figures, ratings, and its rounds to read, side by side and with their quotes."""
