"""Hugging Face's Trainer with our batches and probes, and the set-up and reports that stages share.

May import environments and what is below it.
"""
