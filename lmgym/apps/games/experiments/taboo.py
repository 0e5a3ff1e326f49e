"""Taboo with a scripted describer: the policy learns to guess words from clues, one word and in the form asked for.

deepspeed --num_gpus 2 lmgym/apps/games/experiments/taboo.py --deepspeed configs/zero2.json
"""

from lmgym.config import ModelConfig, OptimizerConfig
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from ppo.config import MethodConfig, PPOConfig, RolloutConfig

CONFIG = PPOConfig(
    name="taboo",
    policy=ModelConfig(model="outputs/models/smollm2-135m", precision="fp32"),
    rollout=RolloutConfig(environment="dialogue:taboo/guesser", num_rollouts=64, max_new_tokens=16, eval_size=32),
    method=MethodConfig(method="grpo", init_kl_coef=0.01),
    optimizer=OptimizerConfig(1e-5, schedule="linear", global_batch=32, micro_batch=8, max_updates=160),
)

if __name__ == "__main__":
    config = override(CONFIG)
    from ppo.named_environments import environment_episodes
    from ppo.train import train

    launch(lambda: train(config, environment_episodes))
