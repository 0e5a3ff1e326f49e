"""Many turns with the app's users: what a policy earns is that they go on.

deepspeed --num_gpus 2 lmgym/apps/world/experiments/world_conversation.py --deepspeed configs/zero2.json --model PATH
"""

from lmgym.config import ModelConfig, OptimizerConfig
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from ppo.config import MethodConfig, PPOConfig, RewardConfig, RolloutConfig

CONFIG = PPOConfig(
    name="world_conversation",
    policy=ModelConfig(model="outputs/chat/model", precision="fp32"),
    rollout=RolloutConfig(environment="world:0", eval_size=256, num_rollouts=128),
    reward=RewardConfig(scale=0.1),  # of lengths up to 30
    method=MethodConfig(init_kl_coef=0.01),
    optimizer=OptimizerConfig(1e-3, schedule="linear", global_batch=32, micro_batch=64, max_updates=128),
)

if __name__ == "__main__":
    config = override(CONFIG)
    from ppo.named_environments import environment_episodes
    from ppo.train import train

    launch(lambda: train(config, environment_episodes))
