"""The chat session with best-of-N and every scorer's opinion, and its front ends.

May import training and what is below it.
"""
