"""Blackjack: a small policy from scratch, trained on random legal moves first, learns when to hit.

deepspeed --num_gpus 2 lmgym/apps/games/experiments/blackjack.py --deepspeed configs/zero2.json
"""

from lmgym.config import ModelConfig, OptimizerConfig
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from ppo.config import CriticConfig, LimitConfig, MethodConfig, PPOConfig, RolloutConfig

CONFIG = PPOConfig(
    name="blackjack",
    policy=ModelConfig(model="outputs/games/blackjack", precision="fp32"),
    rollout=RolloutConfig(environment="games:blackjack", num_rollouts=2048, max_new_tokens=2, eval_size=512),
    method=MethodConfig(init_kl_coef=0.02, ppo_epochs=1),
    critic=CriticConfig(lam=1.0),
    limits=LimitConfig(max_kl=0.0),
    optimizer=OptimizerConfig(1e-3, schedule="linear", global_batch=256, micro_batch=256, max_updates=640),
)

if __name__ == "__main__":
    config = override(CONFIG)
    from lmgym.apps.games.small_policy import make_start
    from ppo.named_environments import environment_episodes
    from ppo.train import train

    if config.policy.model == CONFIG.policy.model:
        make_start("blackjack", config.policy.model)
    launch(lambda: train(config, environment_episodes))
