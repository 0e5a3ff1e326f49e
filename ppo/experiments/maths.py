"""Arithmetic of one digit, rewarded for right answers: rewards that can be checked, by math-verify.

deepspeed --num_gpus 2 ppo/experiments/maths.py --deepspeed configs/zero2.json
"""

from lmgym.config import ModelConfig, OptimizerConfig
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from lmgym.scoring.maths import REWARDS, answer_faults
from ppo.config import MethodConfig, PPOConfig, RewardConfig, RolloutConfig

CONFIG = PPOConfig(
    name="maths",
    policy=ModelConfig(model="outputs/models/smollm2-135m", precision="fp32"),
    rollout=RolloutConfig(prompts="outputs/arithmetic/one_digit.jsonl", num_rollouts=128, max_new_tokens=16),
    reward=RewardConfig(weights="correct=1,format=0.1,length=0"),  # of weight 0: only logged
    method=MethodConfig(method="grpo", init_kl_coef=0.01),
    optimizer=OptimizerConfig(1e-5, schedule="linear", global_batch=64, micro_batch=16, max_updates=160),
)

if __name__ == "__main__":
    config = override(CONFIG)
    from lmgym.environments.arithmetic import write_arithmetic
    from ppo.task_setups import text_with_function
    from ppo.train import train

    if config.rollout.prompts == CONFIG.rollout.prompts:
        write_arithmetic(config.rollout.prompts)
    launch(lambda: train(config, text_with_function(REWARDS, as_text=False, row_check=answer_faults)))
