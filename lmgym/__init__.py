"""What every stage of the gym shares. It knows no stage and imports none."""

__version__ = "0.1.0"
