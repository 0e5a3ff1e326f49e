"""Where episodes come from: the simulated world of users, bots and a hidden utility."""
