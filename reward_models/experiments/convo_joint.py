"""Six things that a user does after a reply, learned together: six bits, binary cross entropy.

deepspeed --num_gpus 2 reward_models/experiments/convo_joint.py --deepspeed configs/zero2.json --model PATH
"""

from lmgym.config import OptimizerConfig, RowsConfig, UpTo
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from reward_models.config import RewardModelConfig

CONFIG = RewardModelConfig(
    name="convo_joint",
    data=RowsConfig("outputs/world/logs.parquet", eval_size=UpTo(10000), train_size=12_000_000, max_length=256),
    probe_data="outputs/world",
    optimizer=OptimizerConfig(learning_rate=1e-5, global_batch=UpTo(128), epochs=4.0),
)

if __name__ == "__main__":
    config = override(CONFIG)
    # after the flags are read: --help needs no torch
    from reward_models.behaviour import BehaviourTask
    from reward_models.metrics.evaluations import GOLD, RANKING, REJECT, RETENTION, RETRY
    from reward_models.metrics.labels import JOINT_BITS
    from reward_models.objectives import MULTI_LABEL_BCE
    from reward_models.train import train

    launch(lambda: train(config, BehaviourTask(JOINT_BITS, MULTI_LABEL_BCE, (RANKING, REJECT, RETRY, RETENTION, GOLD))))
