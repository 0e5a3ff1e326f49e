"""What is measured while PPO trains, and the checks that stop a run or warn of what is wrong with it."""
