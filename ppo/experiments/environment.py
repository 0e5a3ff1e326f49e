"""Any policy in any environment: a game, a Gymnasium id, a verifiers package, an OpenEnv server, or a class of yours.

deepspeed --num_gpus 8 ppo/experiments/environment.py --environment games:blackjack --deepspeed configs/zero2.json
"""

from lmgym.config import ModelConfig, OptimizerConfig, UpTo
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from ppo.config import MethodConfig, PPOConfig, RolloutConfig

CONFIG = PPOConfig(
    name="environment",
    policy=ModelConfig(model="outputs/models/smollm2-135m"),
    rollout=RolloutConfig(eval_size=UpTo(64), num_rollouts=UpTo(64), max_new_tokens=64),
    method=MethodConfig(method="grpo", init_kl_coef=0.01),
    optimizer=OptimizerConfig(1e-5, schedule="linear", global_batch=32, micro_batch=8, max_updates=UpTo(160)),
)

if __name__ == "__main__":
    config = override(CONFIG)
    from ppo.named_environments import environment_episodes
    from ppo.train import train

    launch(lambda: train(config, environment_episodes))
