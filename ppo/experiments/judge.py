"""A judge that compares two replies, trained on pairs with a label: both orders of each, by GRPO.

deepspeed --num_gpus 2 ppo/experiments/judge.py --deepspeed configs/zero2.json --model PATH --prompts PAIRS
"""

from lmgym.config import ModelConfig, OptimizerConfig, UpTo
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from ppo.config import MethodConfig, PPOConfig, RolloutConfig

CONFIG = PPOConfig(
    name="judge",
    policy=ModelConfig(model="outputs/models/smollm2-135m"),
    rollout=RolloutConfig(
        prompts="examples/data/helpful_pairs.jsonl",
        eval_size=UpTo(64),
        num_rollouts=UpTo(128),
        policy_over="actions",  # [[A]] or [[B]]; tokens: reasons first
    ),
    # the entropy keeps a judge from naming one place always, of which it would learn no more
    method=MethodConfig("grpo", init_kl_coef=0.0, scale_rewards="none", entropy_coef=0.05),
    optimizer=OptimizerConfig(1e-5, schedule="linear", global_batch=128, micro_batch=32, max_updates=UpTo(60)),
)

if __name__ == "__main__":
    config = override(CONFIG)
    from ppo.judging import judge_of_pairs, save_settings
    from ppo.train import train

    launch(lambda: save_settings(config, train(config, judge_of_pairs)))
