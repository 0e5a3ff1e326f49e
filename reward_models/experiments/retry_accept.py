"""The reply was kept and two more messages of the user followed: two classes, cross entropy.

deepspeed --num_gpus 2 reward_models/experiments/retry_accept.py --deepspeed configs/zero2.json --model PATH
"""

from lmgym.config import OptimizerConfig, RowsConfig, UpTo
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from reward_models.config import RewardModelConfig

CONFIG = RewardModelConfig(
    name="retry_accept",
    data=RowsConfig("outputs/world/logs.parquet", eval_size=UpTo(10000), train_size=12_000_000, max_length=256),
    probe_data="outputs/world",
    optimizer=OptimizerConfig(learning_rate=1e-5, global_batch=UpTo(64), epochs=2.0),
)

if __name__ == "__main__":
    config = override(CONFIG)
    # after the flags are read: --help needs no torch
    from reward_models.behaviour import BehaviourTask
    from reward_models.metrics.evaluations import GOLD, RANKING, REJECT, RETRY
    from reward_models.metrics.labels import ACCEPTED_AND_CONTINUED
    from reward_models.objectives import CROSS_ENTROPY
    from reward_models.train import train

    launch(lambda: train(config, BehaviourTask(ACCEPTED_AND_CONTINUED, CROSS_ENTROPY, (RANKING, REJECT, RETRY, GOLD))))
