"""The libraries whose files are read, and TRL's trainers, by the names that the command has for them."""

NAMES = {"trl": "TRL", "axolotl": "axolotl", "openrlhf": "OpenRLHF", "verl": "verl", "llamafactory": "LLaMA-Factory"}
KINDS = {name: name.lower() for name in ("Reward", "SFT", "DPO", "KTO", "ORPO", "CPO", "GRPO", "RLOO", "PPO")}
