"""The world's policy against a scorer of users' traces; the world's hidden utility is watched, and never optimised.

deepspeed --num_gpus 2 lmgym/apps/world/experiments/world_engagement.py --deepspeed configs/zero2.json --model PATH \
    --scorers joint=PATH
"""

from lmgym.config import ModelConfig, OptimizerConfig, UpTo
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from ppo.config import MethodConfig, PPOConfig, RewardConfig, RolloutConfig

CONFIG = PPOConfig(
    name="world_engagement",
    policy=ModelConfig(model="outputs/chat/model", precision="fp32"),
    rollout=RolloutConfig(prompts="outputs/world/logs.parquet", eval_size=UpTo(256), num_rollouts=UpTo(256)),
    reward=RewardConfig(scorers="joint=outputs/convo_joint/model", eval_scorer="world:0"),
    method=MethodConfig(init_kl_coef=0.1),
    optimizer=OptimizerConfig(1e-3, schedule="linear", global_batch=64, micro_batch=64, max_updates=UpTo(320)),
)

if __name__ == "__main__":
    config = override(CONFIG)
    from ppo.task_setups import chat_with_scorers
    from ppo.train import train

    launch(lambda: train(config, chat_with_scorers))
