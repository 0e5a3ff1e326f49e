"""Tasks of preference training: pairs or thumbs, how rows become examples, the objective and the evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from lmgym.data.example_rows import ExampleRows
from lmgym.data.pairs import validate as validate_pairs
from lmgym.data.task_data import Preparation, TaskData, prepare
from lmgym.errors import InputError
from lmgym.training.length_rule import LengthRule
from preferences.config import LossConfig, PreferenceConfig
from preferences.examples import (
    PairExample,
    ThumbExample,
    reply_lengths,
    tokenize_pairs,
    tokenize_thumbs,
    with_mismatched,
)
from preferences.objectives import Pairwise, ReplyModel, Thumbs
from preferences.probes import HeldOut, PairProbe, ThumbProbe
from preferences.thumbs import validate as validate_thumbs

LOSSES = {
    "dpo": "DPO loss",
    "ipo": "IPO loss",
    "kto": "KTO loss",
    "simpo": "SimPO loss",
    "orpo": "ORPO loss",
    "bon": "best-of-n loss with soft preferences",
}
MOST_IMBALANCE = 4  # times as many of one label as of the other, without a note


@dataclass(frozen=True)
class PreferenceTask:
    """The examples that a loss learns from."""

    settings: LossConfig

    @property
    def has_thumbs(self) -> bool:
        """True for single replies, False for pairs."""
        return self.settings.loss == "kto"

    def prepare(self, config: PreferenceConfig, tokenizer) -> TaskData:
        """Rows read, validated, split by prompt and tokenised. Raises InputError for replies of one label only."""
        seed, how = config.optimizer.split_seed, self.preparation(config)
        data = prepare(config.data, config.columns, seed, tokenizer, how)
        if self.has_thumbs:
            refuse_one_label(data.train, data.tally.in_front)
        return data

    def preparation(self, config: PreferenceConfig) -> Preparation[Any]:
        """The preparation of rows as examples."""
        if not self.has_thumbs:
            soft = self.settings.loss == "bon"
            validate, variant = partial(validate_pairs, soft=soft), f"soft={soft}"
            return Preparation("pairs", "a usable pair", validate, tokenize_pairs, PairExample, variant)
        usable = "a reply that was liked or disliked"
        finish = partial(with_mismatched, seed=config.optimizer.split_seed, max_length=config.data.max_length)
        return Preparation("replies", usable, validate_thumbs, tokenize_thumbs, ThumbExample, finish=finish)

    def objective(self, model: ReplyModel) -> Pairwise | Thumbs:
        """The loss over batches."""
        return Thumbs(model, self.settings) if self.has_thumbs else Pairwise(model, self.settings)

    def probe(self, data: TaskData, model: ReplyModel, batch_tokens: int) -> HeldOut:
        """The evaluation on held-out examples."""
        if self.has_thumbs:
            return ThumbProbe(data.evaluation, model, self.settings, batch_tokens)
        rule = LengthRule.fitted(reply_lengths(data.train))
        return PairProbe(data.evaluation, model, self.settings, batch_tokens, rule)

    def titles(self, example: Any) -> tuple[str, ...]:
        """Names of an example's replies."""
        return ("liked" if example.liked else "disliked",) if self.has_thumbs else ("chosen", "rejected")


def count_liked(examples: Sequence[ThumbExample]) -> int:
    """The number of liked replies."""
    if isinstance(examples, ExampleRows):
        return examples.count("liked")
    return sum(example.liked for example in examples)


def refuse_one_label(examples: Sequence[ThumbExample], rejected: str = "") -> None:
    """Raises InputError if all replies to train on are liked, or none is; `rejected` says first which rows are out."""
    liked = count_liked(examples)
    if liked in (0, len(examples)):
        found = "liked" if liked else "disliked"
        raise InputError(
            f"{rejected}all {len(examples):,} replies to train on are {found}; needed: some of both, or KTO has "
            f"nothing to compare{'; liked replies alone are learned by lmgym train sft chat' if liked else ''}"
        )


def balance_notes(settings: LossConfig, examples: Sequence[ThumbExample]) -> list[str]:
    """The numbers of both labels, with advice if one weighs far more than the other (Ethayarajh et al. 2024, eq. 9)."""
    liked = count_liked(examples)
    disliked = len(examples) - liked
    note = f"{liked:,} liked and {disliked:,} disliked replies to train on"
    a, b = settings.liked_weight * liked, settings.disliked_weight * disliked
    if max(a, b) > MOST_IMBALANCE * min(a, b):
        flag, weight = ("disliked_weight", liked / disliked) if a > b else ("liked_weight", disliked / liked)
        note += f"; as few of one kind are outweighed: --{flag} {weight:.2g} would weigh both alike"
    return [note]
