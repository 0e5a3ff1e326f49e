"""PPO against the simulated app's users and scorers, and a chat session with its bots, one file each."""
