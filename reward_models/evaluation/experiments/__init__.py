"""Evaluation experiments: a generator and scorers, one file each."""
