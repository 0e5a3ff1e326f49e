"""The libraries whose files are read, and TRL's trainers, by the names that the command has for them."""

NAMES = {"trl": "TRL", "axolotl": "axolotl", "openrlhf": "OpenRLHF", "verl": "verl", "llamafactory": "LLaMA-Factory"}
NYU = "nyu"
"""NYU's debate project, whose file has entries"""
KINDS = {name: name.lower() for name in ("Reward", "SFT", "DPO", "KTO", "ORPO", "CPO", "GRPO", "RLOO", "PPO")}
