"""Ranks, and the engines that train a model on one or many of them: plain, DDP, DeepSpeed.

May import the base layer (text, errors, config, random_state, console).
"""
