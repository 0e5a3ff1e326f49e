"""The runners of game_runs.py by clemcore's names: one game at a time, several at a time, and branching."""
