"""Tasks of preference training: pairs or thumbs, how rows become examples, the objective and the evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from lmgym.data.pairs import validate as validate_pairs
from lmgym.data.task_data import TaskData, prepare_prompted
from lmgym.errors import InputError
from preferences.config import LossConfig, PreferenceConfig
from preferences.examples import ThumbExample, tokenize_pairs, tokenize_thumbs
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
    """What a loss learns from."""

    settings: LossConfig

    @property
    def has_thumbs(self) -> bool:
        """True for single replies, False for pairs."""
        return self.settings.loss == "kto"

    def prepare(self, config: PreferenceConfig, tokenizer) -> TaskData:
        """Rows read, validated, split by prompt and tokenised. Raises InputError for replies of one label only."""
        seed = config.optimizer.split_seed
        if not self.has_thumbs:
            validate = partial(validate_pairs, soft=self.settings.loss == "bon")
            return prepare_prompted(config.data, seed, tokenizer, "pairs", "a usable pair", validate, tokenize_pairs)
        usable, tokenize = "a reply that was liked or disliked", partial(tokenize_thumbs, seed=seed)
        data = prepare_prompted(config.data, seed, tokenizer, "replies", usable, validate_thumbs, tokenize)
        refuse_one_label(data.train)
        return data

    def objective(self, model: ReplyModel) -> Pairwise | Thumbs:
        """The loss over batches."""
        return Thumbs(model, self.settings) if self.has_thumbs else Pairwise(model, self.settings)

    def probe(self, examples: Sequence[Any], model: ReplyModel, batch_tokens: int) -> HeldOut:
        """The evaluation on held-out examples."""
        kind = ThumbProbe if self.has_thumbs else PairProbe
        return kind(examples, model, self.settings, batch_tokens)

    def titles(self, example: Any) -> tuple[str, ...]:
        """Names of an example's replies."""
        return ("liked" if example.liked else "disliked",) if self.has_thumbs else ("chosen", "rejected")


def refuse_one_label(examples: Sequence[ThumbExample]) -> None:
    """Raises InputError if all replies to train on are liked, or none is."""
    liked = sum(example.liked for example in examples)
    if liked in (0, len(examples)):
        found = "liked" if liked else "disliked"
        raise InputError(
            f"all {len(examples):,} replies to train on are {found}; needed: some of both, or KTO has nothing to "
            f"compare{'; liked replies alone are learned by lmgym train sft chat' if liked else ''}"
        )


def balance_notes(settings: LossConfig, examples: Sequence[ThumbExample]) -> list[str]:
    """The numbers of both labels, with advice if one weighs far more than the other (Ethayarajh et al. 2024, eq. 9)."""
    liked = sum(example.liked for example in examples)
    disliked = len(examples) - liked
    note = f"{liked:,} liked and {disliked:,} disliked replies to train on"
    a, b = settings.liked_weight * liked, settings.disliked_weight * disliked
    if max(a, b) > MOST_IMBALANCE * min(a, b):
        flag, weight = ("disliked_weight", liked / disliked) if a > b else ("liked_weight", disliked / liked)
        note += f"; as few of one kind are outweighed: --{flag} {weight:.2g} would weigh both alike"
    return [note]
