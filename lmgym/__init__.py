"""The core that all stages share, the apps above the stages, and the `lmgym` command."""

__version__ = "0.1.0"
