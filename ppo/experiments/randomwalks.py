"""Random walks, trlx's small benchmark: the shortest way to a goal, from a model that copies random walks.

deepspeed --num_gpus 2 ppo/experiments/randomwalks.py --deepspeed configs/zero2.json
"""

from lmgym.config import ModelConfig, OptimizerConfig
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from ppo.config import CriticConfig, LimitConfig, MethodConfig, PPOConfig, RolloutConfig

CONFIG = PPOConfig(
    name="randomwalks",
    policy=ModelConfig(model="outputs/randomwalks_start/graph1000_seed0_steps70", precision="fp32"),
    rollout=RolloutConfig(num_rollouts=200, max_new_tokens=9),
    method=MethodConfig(init_kl_coef=0.0),
    critic=CriticConfig(vf_coef=1.2),
    limits=LimitConfig(max_kl=0.0),
    optimizer=OptimizerConfig(
        3e-4, schedule="linear", global_batch=100, micro_batch=50, max_updates=160, max_grad_norm=100.0
    ),
)

if __name__ == "__main__":
    config = override(CONFIG)
    from lmgym.environments.random_walks_model import make_start
    from ppo.task_setups import random_walks
    from ppo.train import train

    if config.policy.model == CONFIG.policy.model:
        make_start("outputs/randomwalks_start", graph_seed=1000, seed=0)
    launch(lambda: train(config, random_walks))
