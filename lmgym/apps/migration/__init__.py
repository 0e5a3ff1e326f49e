"""Migration: the command here for a script, notebook or configuration of TRL.

May import the core and the stages.
"""
