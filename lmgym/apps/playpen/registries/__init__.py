"""Registries of Playpen's commands: models, games and API keys by name."""
