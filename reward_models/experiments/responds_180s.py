"""The user answers within 180 seconds: two classes, cross entropy.

deepspeed --num_gpus 2 reward_models/experiments/responds_180s.py --deepspeed configs/zero2.json --model PATH
"""

from lmgym.config import OptimizerConfig, RowsConfig, UpTo
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from reward_models.config import RewardModelConfig

CONFIG = RewardModelConfig(
    name="responds_180s",
    data=RowsConfig("outputs/world/logs.parquet", eval_size=UpTo(10000), train_size=12_000_000, max_length=256),
    probe_data="outputs/world",
    optimizer=OptimizerConfig(learning_rate=1.5e-5, global_batch=UpTo(256), epochs=2.0),
)

if __name__ == "__main__":
    config = override(CONFIG)
    # after the flags are read: --help needs no torch
    from reward_models.behaviour import BehaviourTask
    from reward_models.metrics.evaluations import GOLD, RANKING, REJECT, RETRY
    from reward_models.metrics.labels import RESPONDS_180S
    from reward_models.objectives import CROSS_ENTROPY
    from reward_models.train import train

    launch(lambda: train(config, BehaviourTask(RESPONDS_180S, CROSS_ENTROPY, (RANKING, REJECT, RETRY, GOLD))))
