"""Tic-tac-toe by self-play: one small policy from scratch plays both sides, over the moves that are listed.

lmgym train ppo self_play --opponents pool:outputs/tic_tac_toe_pool
"""

from lmgym.config import ModelConfig, OptimizerConfig
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from ppo.config import CriticConfig, LimitConfig, MethodConfig, PPOConfig, RolloutConfig

CONFIG = PPOConfig(
    name="self_play",
    policy=ModelConfig(model="outputs/games/tic_tac_toe_start", precision="fp32"),
    rollout=RolloutConfig(
        environment="games:tic_tac_toe", policy_over="actions", num_rollouts=512, max_new_tokens=2, eval_size=512
    ),
    method=MethodConfig(init_kl_coef=0.1, ppo_epochs=1),
    critic=CriticConfig(lam=0.8),
    limits=LimitConfig(max_kl=0.0),
    optimizer=OptimizerConfig(1e-3, schedule="linear", global_batch=32, micro_batch=32, max_updates=4000),
)

if __name__ == "__main__":
    config = override(CONFIG)
    from lmgym.apps.games.self_play.ppo_setup import self_play
    from lmgym.apps.games.self_play.two_players import make_start
    from ppo.train import train

    if config.policy.model == CONFIG.policy.model:
        make_start("tic_tac_toe", config.policy.model)
    launch(lambda: train(config, self_play))
