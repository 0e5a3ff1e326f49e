"""Prompt sets for debaters and judges, as Python files that map tags to wordings."""
