"""Ranks, and the engines that train a model: plain, DDP or DeepSpeed.

May import the base layer (text, tool_calls, errors, config, console).
"""
