"""The forward of any decoder: packed rows, shared prefixes, frozen layers, log-probabilities.

May import models and what is below it.
"""
