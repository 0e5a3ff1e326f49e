"""Figures that say how good a reward model is.

May import lmgym; knows no trainer.
"""
