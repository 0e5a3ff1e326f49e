"""Metrics of PPO's training, and the checks that stop a run or warn of what is wrong with it."""
