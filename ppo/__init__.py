"""Stage 2: a policy that earns reward, by PPO."""
