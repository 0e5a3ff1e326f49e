"""Who produces text: the Generator in this process or behind a server, sampling, best of n.

May import lmgym.models and the base layer; knows no stage.
"""
