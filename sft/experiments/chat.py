"""Conversations: the bot's turns are learned, token by token, and nothing else.

deepspeed --num_gpus 2 sft/experiments/chat.py --deepspeed configs/zero2.json --model PATH --dataset PATH
"""

from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig, UpTo
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from sft.config import SftConfig

CONFIG = SftConfig(
    name="chat",
    policy=ModelConfig(model="gpt2"),
    data=RowsConfig(dataset="outputs/world/sft.parquet", max_length=1024),
    optimizer=OptimizerConfig(learning_rate=1e-5, global_batch=UpTo(64), micro_batch=UpTo(8), epochs=2.0),
)

if __name__ == "__main__":
    config = override(CONFIG)
    # after the flags are read: --help needs no torch
    from sft.tasks import CHAT
    from sft.train import train

    launch(lambda: train(config, CHAT))
