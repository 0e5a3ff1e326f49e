"""Messages on a user's first three days: a number in [0, 3], squared error.

deepspeed --num_gpus 2 reward_models/experiments/messages_first_days.py --deepspeed configs/zero2.json --model PATH
"""

from lmgym.config import OptimizerConfig, RowsConfig, UpTo
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from reward_models.config import RewardModelConfig

CONFIG = RewardModelConfig(
    name="messages_first_days",
    data=RowsConfig("outputs/world/logs.parquet", eval_size=UpTo(10000), train_size=2_500_000, max_length=256),
    probe_data="outputs/world",
    optimizer=OptimizerConfig(learning_rate=2e-5, global_batch=UpTo(256), epochs=2.0),
)

if __name__ == "__main__":
    config = override(CONFIG)
    # after the flags are read: --help needs no torch
    from reward_models.behaviour import BehaviourTask
    from reward_models.metrics.evaluations import GOLD
    from reward_models.metrics.labels import MESSAGES_FIRST_DAYS
    from reward_models.objectives import SQUARED_ERROR
    from reward_models.train import train

    launch(lambda: train(config, BehaviourTask(MESSAGES_FIRST_DAYS, SQUARED_ERROR, (GOLD,))))
