"""Bradley-Terry on people's choices between two replies (Anthropic's HH data, or any pairs of that form).

deepspeed --num_gpus 2 reward_models/experiments/hh_pairwise.py --deepspeed configs/zero2.json \
    --model PATH --dataset PATH
"""

from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig, UpTo
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from reward_models.config import RewardModelConfig

CONFIG = RewardModelConfig(
    name="hh_pairwise",
    scorer=ModelConfig(model="gpt2"),
    data=RowsConfig(dataset="Anthropic/hh-rlhf", eval_size=0.1, max_length=512),
    optimizer=OptimizerConfig(learning_rate=9e-6, global_batch=UpTo(64), micro_batch=UpTo(8), epochs=1.0),
)

if __name__ == "__main__":
    config = override(CONFIG)
    from reward_models.train import train_pairwise  # after the flags are read: --help needs no torch

    launch(lambda: train_pairwise(config))
