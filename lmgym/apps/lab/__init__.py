"""The laboratory: how far a scorer can be optimised, against the world's known gold; alarms on trial.

May import the core, the stages and the app `world`.
"""
