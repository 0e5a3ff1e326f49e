"""Playpen: dialogue games of clembench and of our own, played and learned by a model.

May import the core and the stages, and of the apps `games`.
"""
