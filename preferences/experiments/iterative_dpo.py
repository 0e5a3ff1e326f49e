"""DPO in rounds on the policy's own replies; online where --prompts_per_round is --global_batch.

deepspeed --num_gpus 2 preferences/experiments/iterative_dpo.py --deepspeed configs/zero2.json --scorers reward=PATH
"""

from lmgym.config import ModelConfig, OptimizerConfig, UpTo
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from preferences.config import LossConfig
from preferences.iterative.config import IterativeConfig, PromptConfig, RoundConfig

CONFIG = IterativeConfig(
    name="iterative_dpo",
    policy=ModelConfig(model="gpt2"),
    data=PromptConfig(prompts="Anthropic/hh-rlhf"),
    rounds=RoundConfig(prompts_per_round=512, num_generations=4),
    loss=LossConfig("dpo", beta=0.1),
    optimizer=OptimizerConfig(
        learning_rate=1e-6, global_batch=64, micro_batch=UpTo(4), schedule="constant_with_warmup"
    ),
)

if __name__ == "__main__":
    config = override(CONFIG)
    # after the flags are read: --help needs no torch
    from preferences.iterative.train import train

    launch(lambda: train(config))
