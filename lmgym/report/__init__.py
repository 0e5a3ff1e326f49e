"""Visual output of a run on its way: the status line of a terminal, with updates, time left and rates.

May import the base layer (text, errors, config, console) and distributed.
"""
