"""A judge that compares, on pairs with a rater's reasons: these first, then the verdict; `lmgym train judge` goes on.

deepspeed --num_gpus 2 sft/experiments/judge_rationales.py --deepspeed configs/zero2.json --model PATH --dataset PATH
"""

from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig, UpTo
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from sft.config import SftConfig

CONFIG = SftConfig(
    name="judge_rationales",
    policy=ModelConfig(model="outputs/models/smollm2-135m"),
    data=RowsConfig(dataset="outputs/pairs_with_reasons.jsonl", max_length=2048),
    optimizer=OptimizerConfig(learning_rate=1e-5, global_batch=UpTo(64), micro_batch=UpTo(4), epochs=2.0),
)

if __name__ == "__main__":
    config = override(CONFIG)
    # after the flags are read: --help needs no torch
    from sft.judging import save_settings
    from sft.tasks import RATIONALES
    from sft.train import train

    launch(lambda: save_settings(config, train(config, RATIONALES)))
