"""Tournaments: schedules, rounds in batches, their files, and figures."""
