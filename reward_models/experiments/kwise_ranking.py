"""People's ranking of several replies to one prompt: Plackett-Luce.

deepspeed --num_gpus 2 reward_models/experiments/kwise_ranking.py --deepspeed configs/zero2.json --model PATH
"""

from lmgym.config import OptimizerConfig, RowsConfig, UpTo
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from reward_models.config import RewardModelConfig

CONFIG = RewardModelConfig(
    name="kwise_ranking",
    data=RowsConfig("outputs/world/kwise.parquet", eval_size=0.1, max_length=256),
    probe_data="outputs/world",
    optimizer=OptimizerConfig(learning_rate=9e-6, global_batch=UpTo(64), epochs=1.0),
)

if __name__ == "__main__":
    config = override(CONFIG)
    # after the flags are read: --help needs no torch
    from reward_models.kwise import KwiseTask
    from reward_models.train import train

    launch(lambda: train(config, KwiseTask()))
