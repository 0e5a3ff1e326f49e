"""Games of other libraries as environments, a tool-use game of our own, and scripted players to compare with.

May import the environments and what is below them.
"""
