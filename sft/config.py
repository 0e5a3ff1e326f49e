"""The config of an SFT run: frozen, in groups, every field a flag."""

from dataclasses import dataclass, field
from typing import Annotated

from lmgym.config import ColumnConfig, ModelConfig, OptimizerConfig, Range, RunConfig, TrainerConfig
from lmgym.config import SamplesConfig as SamplesConfig
from lmgym.errors import FEWEST_TOKENS, MOST_STEPS, MOST_TOKENS


@dataclass(frozen=True)
class SftDataConfig:
    """Source, split and truncation of the conversations."""

    dataset: str = "outputs/world/sft.parquet"
    """file (JSON, Parquet, Arrow, CSV), folder, also of save_to_disk, or hub id; several are separated by commas"""
    dataset_weights: str | None = None
    """of several data sets: numbers separated by commas, in whose proportion rows are used: the set that is scarcest
    for its weight is used whole, of the others a random part (split_seed); None: all rows"""
    dataset_split: str = "train"
    """split of a hub id, or the start of the file names in a folder"""
    eval_dataset: str | None = None
    """conversations to evaluate on; None: a part of the dataset, split by the prompt of the last reply"""
    eval_size: Annotated[float, Range(0, MOST_STEPS, hint="below 1 a share of the rows")] = 0.05
    """without eval_dataset: a share below 1, or a number of rows"""
    split_by: str = "prompt"
    """what is never on both sides: a prompt; first_message, a conversation with all its turns; or a column's value"""
    train_size: Annotated[int | None, Range(1, MOST_STEPS, also=(None,), hint="none for all")] = None
    """train on at most this many rows; None: all"""
    max_rows: Annotated[int | None, Range(1, MOST_STEPS, also=(None,), hint="none for all")] = None
    """use only the first rows of each data set"""
    max_length: Annotated[int, Range(FEWEST_TOKENS, MOST_TOKENS, hint="fewer hold no conversation")] = 1024
    """tokens of a row; longer conversations become several rows, each output whole"""


@dataclass(frozen=True)
class SftConfig:
    """An SFT experiment."""

    name: str
    """name of the experiment and of its output folder"""
    policy: ModelConfig = field(default_factory=ModelConfig)
    data: SftDataConfig = field(default_factory=SftDataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    samples: SamplesConfig = field(default_factory=SamplesConfig)
    run: RunConfig = field(default_factory=RunConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    columns: ColumnConfig = field(default_factory=ColumnConfig)
    merge_adapter: bool = False
    """with LoRA: save the merged weights too, as an ordinary folder model/"""

    @property
    def output(self) -> str:
        """The folder of the results."""
        return self.run.output or f"outputs/{self.name}"
