"""Tic-tac-toe by self-play: one small policy from scratch plays both sides, after SFT on random legal moves.

lmgym train ppo self_play --opponents pool:outputs/tic_tac_toe_pool
"""

from lmgym.config import ModelConfig, OptimizerConfig
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from ppo.config import CriticConfig, LimitConfig, MethodConfig, PPOConfig, RolloutConfig

CONFIG = PPOConfig(
    name="self_play",
    policy=ModelConfig(model="outputs/games/tic_tac_toe_start", precision="fp32"),
    rollout=RolloutConfig(prompts="game:tic_tac_toe", num_rollouts=256, max_new_tokens=2, eval_size=512),
    method=MethodConfig(init_kl_coef=0.0), critic=CriticConfig(lam=1.0), limits=LimitConfig(max_kl=0.0),
    optimizer=OptimizerConfig(1e-3, schedule="linear", global_batch=128, micro_batch=128, max_updates=1600),
)  # fmt: skip

if __name__ == "__main__":
    config = override(CONFIG)
    from lmgym.environments.self_play.two_players import make_start
    from ppo.self_play.setups import self_play
    from ppo.train import train

    if config.policy.model == CONFIG.policy.model:
        make_start("tic_tac_toe", config.policy.model)
    launch(lambda: train(config, self_play))
