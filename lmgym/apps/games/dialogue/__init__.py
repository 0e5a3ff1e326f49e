"""Dialogue games of our own, with clembench's records and scores, and rows to learn from."""
