"""PPO on games, one file each."""
