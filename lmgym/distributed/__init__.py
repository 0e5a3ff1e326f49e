"""Ranks, and the engines that train a model: plain, DDP or DeepSpeed.

May import the base layer (text, errors, config, random_state, console).
"""
