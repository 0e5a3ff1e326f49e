"""What a reward-model run is made of: one frozen config in four groups, every field a flag."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from lmgym.config import ModelConfig as ScorerConfig
from lmgym.config import OptimizerConfig, Range, RunConfig, TrainerConfig
from lmgym.errors import MOST_STEPS, MOST_TOKENS


@dataclass(frozen=True)
class DataConfig:
    """Where the rows come from and how they are cut."""

    dataset: str = "Anthropic/hh-rlhf"
    """file (.jsonl, .jsonl.gz, .parquet, .csv), folder or hub id"""
    dataset_split: str = "train"
    """split of a hub id, or the start of the file names in a folder"""
    eval_dataset: str | None = None
    """rows to evaluate on; None: a part of the dataset, split by prompt or by user"""
    eval_size: Annotated[float, Range(0, MOST_STEPS, hint="below 1 a share of the rows")] = 0.1
    """without eval_dataset: a share below 1, or a number of rows"""
    train_size: Annotated[int | None, Range(1, MOST_STEPS, also=(None,), hint="none for all")] = None
    """train on at most so many rows; None: all"""
    max_rows: Annotated[int | None, Range(1, MOST_STEPS, also=(None,), hint="none for all")] = None
    """use only the first rows of the dataset"""
    rows_per_user: Annotated[int | None, Range(1, MOST_STEPS, also=(None,), hint="none for all")] = None
    """of logs: at most so many rows a user; None: all"""
    rows_per_user_mode: Literal["unchanged", "random", "reverse"] = "unchanged"
    """which of a user's rows: the first, random ones, or the last"""
    probe_data: str | None = None
    """folder with evaluation sets (retry_eval, ranking_eval, ...; .parquet or .jsonl); None: held-out rows only"""
    probe_rows: Annotated[int, Range(1, MOST_STEPS)] = 2000
    """at most so many rows of an evaluation set"""
    max_length: Annotated[int, Range(1, MOST_TOKENS)] = 512
    """tokens of a prompt with its reply; longer ones lose their oldest turns, the reply stays whole"""


@dataclass(frozen=True)
class RewardConfig:
    """A reward-model experiment."""

    name: str
    """of the experiment: names the output folder"""
    scorer: ScorerConfig = field(default_factory=ScorerConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    run: RunConfig = field(default_factory=RunConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    centering: Annotated[float, Range(0, 1000, hint="0: none")] = 0.0
    """of pairs: weight of (chosen + rejected)^2, which keeps scores around 0; 0.01 is usual"""

    @property
    def output(self) -> str:
        """The folder of the results."""
        return self.run.output or f"outputs/{self.name}"
