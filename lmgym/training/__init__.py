"""Hugging Face's Trainer with our batches and probes, and what every stage's training does alike.

May import environments and what is below it.
"""
