"""Chat: a best-of-N session in IPython, a terminal or a pipe, with the opinion of every scorer.

May import the core and the stages, and of the apps `world`.
"""
