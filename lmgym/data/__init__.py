"""Rows of datasets: read, checked, split by prompt, truncated, and cut into batches.

May import runs and what is below it.
"""
