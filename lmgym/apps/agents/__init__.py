"""Agents: LlamaGym's interface to the engine that plays and to PPO.

May import the core and the stages, and of the apps `games`.
"""
