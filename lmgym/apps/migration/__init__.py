"""Migration: the command here for a script, notebook or configuration of another library.

May import the core and the stages. The files that it prints import the app of debates.
"""
