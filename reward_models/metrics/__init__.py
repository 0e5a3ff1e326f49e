"""Metrics of reward models.

May import lmgym, but no trainer.
"""
