"""Iterative and online DPO: rounds of sampling, scoring, pairing and training, in one run.

May import what the stage `preferences` may.
"""
