"""The config of a reward model's run: frozen, in groups, every field a flag."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from lmgym.config import (
    ColumnConfig,
    ModelConfig,
    OptimizerConfig,
    Range,
    RowsConfig,
    RunConfig,
    SharingConfig,
    TrainerConfig,
)
from lmgym.errors import MOST_STEPS


@dataclass(frozen=True)
class RewardModelConfig:
    """A reward-model experiment."""

    name: str
    """name of the experiment and of its output folder"""
    scorer: ModelConfig = field(default_factory=ModelConfig)
    data: RowsConfig = field(default_factory=lambda: RowsConfig(eval_size=0.1, max_length=512))
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    run: RunConfig = field(default_factory=RunConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    columns: ColumnConfig = field(default_factory=ColumnConfig)
    centering: Annotated[float, Range(0, 1000, hint="0: none")] = 0.0
    """of pairs: weight of (chosen + rejected)^2, which keeps scores around 0; 0.01 is usual"""
    rows_per_user: Annotated[int | None, Range(1, MOST_STEPS, also=(None,), hint="none for all")] = None
    """of logs: at most this many rows per user; None: all"""
    rows_per_user_mode: Literal["unchanged", "random", "reverse"] = "unchanged"
    """which of a user's rows: the first, random ones, or the last"""
    probe_data: str | None = None
    """folder with evaluation sets (retry_eval, ranking_eval, ...; .parquet or .jsonl); None: held-out rows only"""
    sharing: SharingConfig = field(default_factory=SharingConfig)
    heads: Annotated[int, Range(1, 64)] = 1
    """of pairs: heads on one trunk, each with a random start and a bootstrap of the pairs of its own"""

    def with_given(self, names: Collection[str]) -> "RewardModelConfig":
        """The config if the settings `names` were given: an experiment's evaluation sets belong to its own data."""
        if "dataset" in names and "probe_data" not in names:
            return replace(self, probe_data=None)
        return self

    @property
    def output(self) -> str:
        """The folder of the results."""
        return self.run.folder(self.name)
