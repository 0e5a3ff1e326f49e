"""The config of an SFT run: frozen, in groups, every field a flag."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from lmgym.config import ModelConfig, OptimizerConfig, Range, RunConfig, TrainerConfig
from lmgym.errors import FEWEST_TOKENS, MOST_STEPS, MOST_TEMPERATURE, MOST_TOGETHER, MOST_TOKENS


@dataclass(frozen=True)
class SftDataConfig:
    """Source, split and truncation of the conversations."""

    dataset: str = "outputs/world/sft.parquet"
    """file (.jsonl, .jsonl.gz, .parquet, .csv), folder or hub id; several are separated by commas"""
    dataset_weights: str | None = None
    """of several data sets: numbers separated by commas, in whose proportion rows are used: the set that is scarcest
    for its weight is used whole, of the others a random part (split_seed); None: all rows"""
    dataset_split: str = "train"
    """split of a hub id, or the start of the file names in a folder"""
    eval_dataset: str | None = None
    """conversations to evaluate on; None: a part of the dataset, split by the prompt of the last reply"""
    eval_size: Annotated[float, Range(0, MOST_STEPS, hint="below 1 a share of the rows")] = 0.05
    """without eval_dataset: a share below 1, or a number of rows"""
    train_size: Annotated[int | None, Range(1, MOST_STEPS, also=(None,), hint="none for all")] = None
    """train on at most this many rows; None: all"""
    max_rows: Annotated[int | None, Range(1, MOST_STEPS, also=(None,), hint="none for all")] = None
    """use only the first rows of each data set"""
    max_length: Annotated[int, Range(FEWEST_TOKENS, MOST_TOKENS, hint="fewer hold no conversation")] = 1024
    """tokens of a row; longer conversations become several rows, each output whole"""


@dataclass(frozen=True)
class SamplesConfig:
    """Fixed prompts that are answered during training."""

    prompts: str | None = None
    """conversations, in any form, whose last reply is generated; None: those of held-out rows"""
    sample_prompts: Annotated[int, Range(0, 10_000)] = 8
    """number of prompts; 0: none"""
    sample_tokens: Annotated[int, Range(1, MOST_TOGETHER)] = 64
    """most tokens of a reply"""
    temperature: Annotated[float | None, Range(0, MOST_TEMPERATURE, also=(None,), hint="0 is greedy")] = None
    """of the sampling; 0 takes the likeliest token; None: the model's own (generation_config.json), else 1"""
    top_p: Annotated[float | None, Range(0, 1, above=True, also=(None,), hint="1 keeps every token")] = None
    """only the fewest likeliest tokens whose probabilities sum to p; None: the model's own, else 1 (all)"""
    scorers: str | None = None
    """scorers of the replies: name=PATH, separated by commas"""
    scorer_precision: Literal["auto", "bf16", "fp32"] = "auto"
    """of scorers' weights, but for their heads in fp32; auto: bf16 on a GPU, fp32 on a CPU"""


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
    merge_adapter: bool = False
    """with LoRA: save the merged weights too, as an ordinary folder model/"""

    @property
    def output(self) -> str:
        """The folder of the results."""
        return self.run.output or f"outputs/{self.name}"
