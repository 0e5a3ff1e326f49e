"""Prompt sets: what debaters and judges are told, as Python files that map tags to wordings.

May import lmgym's base layer.
"""
