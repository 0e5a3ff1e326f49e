"""Settings of policy optimisation, in groups whose fields are flags: import each from here.

Names follow trlx where it has them, else TRL. May import ppo.algorithms and lmgym.config.
"""

from ppo.config.experiment import PPOConfig
from ppo.config.method import CAPS, CriticConfig, MethodConfig, SamplerCorrection
from ppo.config.reward import LimitConfig, RewardConfig
from ppo.config.rollout import UNREAD, EngineConfig, RolloutConfig

__all__ = [
    "CAPS",
    "UNREAD",
    "CriticConfig",
    "EngineConfig",
    "LimitConfig",
    "MethodConfig",
    "PPOConfig",
    "RewardConfig",
    "RolloutConfig",
    "SamplerCorrection",
]
