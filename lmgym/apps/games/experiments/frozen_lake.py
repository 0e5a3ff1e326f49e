"""FrozenLake without slipping: a small policy from scratch, trained on random legal moves first, finds the way.

deepspeed --num_gpus 2 lmgym/apps/games/experiments/frozen_lake.py --deepspeed configs/zero2.json
"""

from lmgym.config import ModelConfig, OptimizerConfig
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from ppo.config import CriticConfig, LimitConfig, MethodConfig, PPOConfig, RolloutConfig

CONFIG = PPOConfig(
    name="frozen_lake",
    policy=ModelConfig(model="outputs/games/frozen_lake", precision="fp32"),
    rollout=RolloutConfig(environment="games:frozen_lake", num_rollouts=512, max_new_tokens=2, eval_size=128),
    method=MethodConfig(init_kl_coef=0.02, ppo_epochs=1, stop_kl=0.03),
    critic=CriticConfig(gamma=0.99, lam=1.0),
    limits=LimitConfig(max_kl=0.0),
    optimizer=OptimizerConfig(1e-3, schedule="linear", global_batch=64, micro_batch=64, max_updates=640),
)

if __name__ == "__main__":
    config = override(CONFIG)
    from lmgym.apps.games.small_policy import make_start
    from ppo.named_environments import environment_episodes
    from ppo.train import train

    if config.policy.model == CONFIG.policy.model:
        make_start("frozen_lake", config.policy.model)
    launch(lambda: train(config, environment_episodes))
