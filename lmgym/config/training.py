"""Settings of the stages that run Hugging Face's Trainer, and evaluations during training."""

from dataclasses import dataclass
from typing import Annotated

from lmgym.config.ranges import Range
from lmgym.errors import MOST_STEPS, MOST_TEMPERATURE, MOST_TOGETHER

CAPABILITIES_BATCH = 8
"""rows of a task that a rank answers together"""


@dataclass(frozen=True)
class TrainerConfig:
    """Settings of the stages that run Hugging Face's Trainer."""

    lora_dropout: Annotated[float, Range(0, 1, below=True)] = 0.0
    """dropout in front of the adapters"""
    dropout: bool = False
    """keep the model's own dropout in training, such as GPT-2's .1; off: every forward is that of the model in use"""
    packed: bool | None = None
    """run rows packed, with shared prefixes; None: if the model gives the same results packed and alone"""
    data_workers: Annotated[int, Range(0, 1024)] = 0
    """processes that prepare batches"""
    log_updates: Annotated[int, Range(1, MOST_STEPS)] = 10
    """updates between two lines of metrics"""
    best_metric: str | None = "loss"
    """model/ is the best evaluation by this held-out metric, or by SET/METRIC of another evaluation; the last model is
    in last/; none: model/ is the last"""
    early_stopping: Annotated[int, Range(0, MOST_STEPS, hint="0 stops at the last update")] = 0
    """stop after so many evaluations in a row that are not better than the best; 0: never"""


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
    """scorers of the replies: [name=]PATH, separated by commas"""


@dataclass(frozen=True)
class CapabilitiesConfig:
    """Tests by lm-eval at each evaluation, the first of which is before training. An extra: lmgym[capabilities]."""

    capabilities: str | None = None
    """tasks of lm-eval: names such as gsm8k, task files (.yaml) and folders of them, separated by commas; None: none"""
    capabilities_data: str | None = None
    """files with the rows of tasks: TASK=FILE, separated by commas; None: the rows that a task names"""
    capabilities_limit: Annotated[int, Range(0, MOST_STEPS, hint="0 takes all")] = 100
    """most rows of a task; 0: all"""
