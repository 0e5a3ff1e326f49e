"""The config of a run in rounds: frozen, in groups, every field a flag."""

from dataclasses import dataclass, field
from typing import Annotated

from lmgym.config import (
    ColumnConfig,
    First,
    Means,
    ModelConfig,
    OptimizerConfig,
    Range,
    RunConfig,
    SharingConfig,
    TrainerConfig,
    UpTo,
)
from lmgym.errors import FEWEST_TOKENS, MOST_SCORE, MOST_STEPS, MOST_TEMPERATURE, MOST_TOGETHER, MOST_TOKENS
from preferences.config import LossConfig


@dataclass(frozen=True)
class PromptConfig:
    """Source, split and truncation of the prompts."""

    prompts: Annotated[str, First(), Means("rows")] = "Anthropic/hh-rlhf"
    """file, folder or hub id, with prompts in any form; several are separated by commas"""
    prompt_weights: Annotated[str | None, Means("weights of the rows")] = None
    """of several data sets: numbers separated by commas, in whose proportion prompts are used; None: all prompts"""
    prompt_split: Annotated[str, Means("split")] = "train"
    """split of a hub id, or the start of the file names in a folder"""
    eval_prompts: Annotated[str | None, Means("held-out rows")] = None
    """prompts to evaluate on; None: a part of `prompts`"""
    eval_size: Annotated[float, Range(0, MOST_STEPS, hint="below 1 a share of the prompts")] = UpTo(128)
    """without eval_prompts: a share below 1, or a number of prompts; unless it is set, at most a tenth of them"""
    split_by: Annotated[str, Means("unit of the split")] = "prompt"
    """what is never on both sides: a prompt; first_message, a conversation with all its turns; or a column's value"""
    max_length: Annotated[int, Range(FEWEST_TOKENS, MOST_TOKENS, hint="fewer hold no conversation")] = 1024
    """tokens of a prompt with its reply; longer prompts lose their oldest turns"""


@dataclass(frozen=True)
class RoundConfig:
    """A round before its updates: sampling, scoring and pairing."""

    prompts_per_round: Annotated[int, First(), Range(1, MOST_TOGETHER)] = 512
    """prompts, and pairs, of a round: a multiple of global_batch; equal to it, training is online"""
    num_generations: Annotated[int, First(), Range(2, MOST_TOGETHER, hint="a pair needs 2 replies")] = 4
    """replies to each prompt, of which the best and the worst are paired"""
    renew_reference: bool = False
    """the reference is the policy at the beginning of each round; else the model that training starts from"""
    max_new_tokens: Annotated[int, Range(1, MOST_TOGETHER)] = 64
    """most tokens of a reply"""
    temperature: Annotated[float, Range(0, MOST_TEMPERATURE, above=True)] = 1.0
    """of the sampling"""
    top_p: Annotated[float, Range(0, 1, above=True, hint="1 keeps all tokens")] = 1.0
    """only the fewest likeliest tokens whose probabilities sum to p"""
    generation_batch_size: Annotated[int, Range(1, MOST_TOGETHER)] = 64
    """replies that a rank samples at once; they are written down before the next ones are sampled"""


@dataclass(frozen=True)
class JudgeConfig:
    """The scorers of the replies."""

    scorers: Annotated[str | None, First()] = None
    """[name=]PATH, separated by commas: the best reply has the highest weighted sum of their scores"""
    weights: str | None = None
    """name=NUMBER, separated by commas; 1 by default"""
    monitor_scorer: str | None = None
    """[name=]PATH of a scorer that never chooses, for the win rate, and for an alarm if its score falls while the
    scorers' rises; None: the win rate is by the scorers themselves"""
    missing_eos_penalty: Annotated[float, Range(0, MOST_SCORE)] = 1.0
    """subtracted from the score of a reply that did not end by itself"""


@dataclass(frozen=True)
class IterativeConfig:
    """An experiment in rounds."""

    name: str
    """name of the experiment and of its output folder"""
    policy: ModelConfig = field(default_factory=ModelConfig)
    data: PromptConfig = field(default_factory=PromptConfig)
    rounds: RoundConfig = field(default_factory=RoundConfig)
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    run: RunConfig = field(default_factory=RunConfig)
    trainer: TrainerConfig = field(default_factory=lambda: TrainerConfig(best_metric=None))
    columns: ColumnConfig = field(default_factory=ColumnConfig)
    merge_adapter: bool = False
    """with LoRA: save the merged weights too, as an ordinary folder model/"""
    sharing: SharingConfig = field(default_factory=SharingConfig)

    @property
    def output(self) -> str:
        """The folder of the results."""
        return self.run.folder(self.name)

    @property
    def updates_per_round(self) -> int:
        """Updates on the pairs of a round."""
        return self.rounds.prompts_per_round // self.optimizer.global_batch

    @property
    def uses_adapter(self) -> bool:
        """True if the reference is the policy with its adapters off."""
        return self.policy.lora_rank > 0 and not self.rounds.renew_reference and self.loss.has_reference
