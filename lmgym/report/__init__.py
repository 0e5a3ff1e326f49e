"""Visual output: the status line of a terminal, the report of a run's folder as a page, and comparisons of runs.

May import the base layer (text, errors, config, console) and distributed.
"""
