"""Tournaments, and the experiments of stages that train debaters, one file each."""
