"""Single replies with thumbs up or down, or kept and retried ones of an app's logs: KTO.

deepspeed --num_gpus 2 preferences/experiments/kto_thumbs.py --deepspeed configs/zero2.json --model PATH --dataset PATH
"""

from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig, UpTo
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from preferences.config import LossConfig, PreferenceConfig

CONFIG = PreferenceConfig(
    name="kto_thumbs",
    policy=ModelConfig(model="gpt2"),
    data=RowsConfig(dataset="outputs/world/logs.parquet", max_length=1024),
    loss=LossConfig("kto", beta=0.1),
    optimizer=OptimizerConfig(learning_rate=1e-6, global_batch=UpTo(64), micro_batch=UpTo(8), warmup=0.1),
)

if __name__ == "__main__":
    config = override(CONFIG)
    # after the flags are read: --help needs no torch
    from preferences.train import train

    launch(lambda: train(config))
