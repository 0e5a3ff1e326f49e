"""HTTP servers of what was trained: the rewards of scorers in the formats of other libraries' trainers, and a client.

May import the core and the stages.
"""
