"""What judges replies: scorers, ensembles, functions with retries, best of n.

May import world and what is below it.
"""
