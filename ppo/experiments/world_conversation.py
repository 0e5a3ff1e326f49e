"""Many turns with the app's users: what a policy earns is that they go on.

deepspeed --num_gpus 2 ppo/experiments/world_conversation.py --deepspeed configs/zero2.json --model PATH
"""

from lmgym.config import ModelConfig, OptimizerConfig
from lmgym.launch import launch
from lmgym.override import override
from ppo.config import MethodConfig, PPOConfig, RolloutConfig

CONFIG = PPOConfig(
    name="world_conversation",
    policy=ModelConfig(model="outputs/chat/model", precision="fp32"),
    rollout=RolloutConfig(prompts="world:0", eval_size=128, num_rollouts=128),
    # values are conversations' lengths: no limit of .2 to how fast they are learned
    method=MethodConfig(init_kl_coef=0.05, gamma=0.97, cliprange_value=20.0, vf_coef=0.1),
    optimizer=OptimizerConfig(1e-3, schedule="linear", global_batch=32, micro_batch=64, max_updates=160),
)

if __name__ == "__main__":
    config = override(CONFIG)
    from ppo.gyms import app_conversations
    from ppo.train import train

    launch(lambda: train(config, app_conversations))
