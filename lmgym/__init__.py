"""Code that all stages share. It imports no stage, except in the commands of lmgym.cli."""

__version__ = "0.1.0"
