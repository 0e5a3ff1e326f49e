"""The config of a reward model's run: frozen, in groups, every field a flag."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from lmgym.config import ColumnConfig, OptimizerConfig, Range, RunConfig, TrainerConfig
from lmgym.config import ModelConfig as ModelConfig
from lmgym.errors import FEWEST_TOKENS, MOST_STEPS, MOST_TOKENS


@dataclass(frozen=True)
class RewardDataConfig:
    """Source, limits, split and truncation of the rows."""

    dataset: str = "Anthropic/hh-rlhf"
    """file (JSON, Parquet, Arrow, CSV), folder, also of save_to_disk, or hub id; several are separated by commas"""
    dataset_weights: str | None = None
    """of several data sets: numbers separated by commas, in whose proportion rows are used: the set that is scarcest
    for its weight is used whole, of the others a random part (split_seed); None: all rows"""
    dataset_split: str = "train"
    """split of a hub id, or the start of the file names in a folder"""
    eval_dataset: str | None = None
    """rows to evaluate on; None: a part of the dataset, split by prompt or by user"""
    eval_size: Annotated[float, Range(0, MOST_STEPS, hint="below 1 a share of the rows")] = 0.1
    """without eval_dataset: a share below 1, or a number of rows"""
    split_by: str = "prompt"
    """what is never on both sides: a prompt; first_message, a conversation with all its turns; or a column's value.
    Logs are split by user"""
    train_size: Annotated[int | None, Range(1, MOST_STEPS, also=(None,), hint="none for all")] = None
    """train on at most this many rows; None: all"""
    max_rows: Annotated[int | None, Range(1, MOST_STEPS, also=(None,), hint="none for all")] = None
    """use only the first rows of each data set"""
    rows_per_user: Annotated[int | None, Range(1, MOST_STEPS, also=(None,), hint="none for all")] = None
    """of logs: at most this many rows per user; None: all"""
    rows_per_user_mode: Literal["unchanged", "random", "reverse"] = "unchanged"
    """which of a user's rows: the first, random ones, or the last"""
    probe_data: str | None = None
    """folder with evaluation sets (retry_eval, ranking_eval, ...; .parquet or .jsonl); None: held-out rows only"""
    probe_rows: Annotated[int, Range(1, MOST_STEPS)] = 2000
    """at most this many rows of an evaluation set"""
    max_length: Annotated[int, Range(FEWEST_TOKENS, MOST_TOKENS, hint="fewer hold no conversation")] = 512
    """tokens of a prompt with its reply; longer ones lose their oldest turns, the reply stays whole"""


@dataclass(frozen=True)
class RewardModelConfig:
    """A reward-model experiment."""

    name: str
    """name of the experiment and of its output folder"""
    scorer: ModelConfig = field(default_factory=ModelConfig)
    data: RewardDataConfig = field(default_factory=RewardDataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    run: RunConfig = field(default_factory=RunConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    columns: ColumnConfig = field(default_factory=ColumnConfig)
    centering: Annotated[float, Range(0, 1000, hint="0: none")] = 0.0
    """of pairs: weight of (chosen + rejected)^2, which keeps scores around 0; 0.01 is usual"""

    def with_given(self, names: Collection[str]) -> "RewardModelConfig":
        """The config if the settings `names` were given: an experiment's evaluation sets belong to its own data."""
        if "dataset" in names and "probe_data" not in names:
            return replace(self, data=replace(self.data, probe_data=None))
        return self

    @property
    def output(self) -> str:
        """The folder of the results."""
        return self.run.output or f"outputs/{self.name}"
