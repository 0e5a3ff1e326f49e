"""A small PPO run in this process: two iterations of four updates, of which a test changes some settings."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from launching import assert_metrics_are_known

from lmgym.config import ModelConfig, OptimizerConfig, RunConfig
from lmgym.runs.fields import flatten
from ppo.config import MethodConfig, PPOConfig, RewardConfig, RolloutConfig
from ppo.task_setups import Prepare, text_with_function
from ppo.train import train


def shortness(samples, prompts, outputs, tokenizer) -> list[float]:
    return [1 / (1 + len(text)) for text in outputs]


PLAIN = text_with_function(shortness, as_text=False)
Go = Callable[..., Path]
"""`train_small` with some settings changed: the folder"""


def train_small(
    model: Path, chats: Path, root: Path, /, prepare: Prepare = PLAIN, name: str = "run", **changes: Any
) -> Path:
    """The folder of a run whose settings are changed so."""
    config = PPOConfig(
        "small",
        ModelConfig(str(model), precision="fp32"),
        RolloutConfig(str(chats), eval_size=6, num_rollouts=16, max_new_tokens=8),
        RewardConfig(),
        MethodConfig(ppo_epochs=2),
        OptimizerConfig(1e-3, warmup=0, global_batch=8, micro_batch=4, max_updates=8),
        RunConfig(str(root / name), tracking="none", save_updates=-1, eval_updates=8),
    )
    assert changes.keys() <= flatten(config).keys()
    groups = {}
    for group in (
        "policy",
        "rollout",
        "reward",
        "method",
        "optimizer",
        "run",
        "critic",
        "limits",
        "capabilities",
        "engine",
    ):
        fields = vars(getattr(config, group))
        own = {key: str(v) if isinstance(v, Path) else v for key, v in changes.items() if key in fields}
        groups[group] = replace(getattr(config, group), **own)
    folder = train(replace(config, **groups), prepare)
    if (folder / "metrics.jsonl").exists():  # no dry run
        assert_metrics_are_known(folder)
    return folder
