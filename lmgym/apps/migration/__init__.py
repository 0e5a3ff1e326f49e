"""Migration: the command here for a script, notebook or configuration of another library.

May import the core and the stages, and of the apps `debate`, which the files that it prints import too.
"""
