"""What trainers of Playpen are made of: their base class, callbacks, and games as task setups for learning.

May import lmgym.playpen, lmgym.playpen.clembench and what is below them.
"""
