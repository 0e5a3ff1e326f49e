"""Stage 2: a chat policy optimised against reward models by PPO."""
