"""Any policy against any scorer, on any prompts: each a folder or a hub id.

deepspeed --num_gpus 8 ppo/experiments/hh_harmless.py --deepspeed configs/zero2.json --model PATH --scorers a=PATH
"""

from lmgym.config import ModelConfig, OptimizerConfig, UpTo
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from ppo.config import MethodConfig, PPOConfig, RewardConfig, RolloutConfig

CONFIG = PPOConfig(
    name="hh_harmless",
    policy=ModelConfig(model="outputs/hh_chosen/model"),
    rollout=RolloutConfig(prompts="Anthropic/hh-rlhf", eval_size=UpTo(512), num_rollouts=UpTo(512), max_new_tokens=128),
    reward=RewardConfig(scorers="harmless=outputs/hh_pairwise/model", missing_eos_penalty=1.0),
    method=MethodConfig(num_layers_unfrozen=2, target=6.0),
    optimizer=OptimizerConfig(3e-6, schedule="linear", global_batch=64, micro_batch=8, max_updates=UpTo(1600)),
)

if __name__ == "__main__":
    config = override(CONFIG)
    from ppo.task_setups import chat_with_scorers
    from ppo.train import train

    launch(lambda: train(config, chat_with_scorers))
