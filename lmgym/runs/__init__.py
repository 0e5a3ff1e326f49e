"""The life of a run: folder, flags, launch, checkpoints, resuming, locks, signals, stalls, tracking.

May import distributed and what is below it.
"""
