"""The chosen replies of people's choices (Anthropic's HH data, or any pairs of that form).

deepspeed --num_gpus 2 sft/experiments/hh_chosen.py --deepspeed configs/zero2.json --model PATH --dataset PATH
"""

from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig, UpTo
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from sft.config import SftConfig

CONFIG = SftConfig(
    name="hh_chosen",
    policy=ModelConfig(model="gpt2"),
    data=RowsConfig(dataset="Anthropic/hh-rlhf", max_length=1024),
    optimizer=OptimizerConfig(learning_rate=1e-5, global_batch=UpTo(64), micro_batch=UpTo(8), epochs=1.0),
)

if __name__ == "__main__":
    config = override(CONFIG)
    # after the flags are read: --help needs no torch
    from sft.tasks import CHOSEN
    from sft.train import train

    launch(lambda: train(config, CHOSEN))
