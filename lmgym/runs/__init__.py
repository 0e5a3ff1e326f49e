"""A run's folder, flags, launch, checkpoints, resuming, locks, signals, stalls and tracking.

May import distributed and what is below it.
"""
