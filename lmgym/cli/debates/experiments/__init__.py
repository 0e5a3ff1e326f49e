"""Tournaments of debate, one file each."""
