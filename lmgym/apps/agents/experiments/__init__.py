"""PPO on a gym environment through LlamaGym's interface."""
