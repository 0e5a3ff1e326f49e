"""Hugging Face's Trainer with our batches and probes, and what every stage's training does alike.

May import lmgym.models, data, runs and distributed; knows no stage.
"""
