"""Objectives of scorers: from examples to a batch, and from scores to a loss."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from lmgym.models.forward.scoring_model import ScoringModel
from lmgym.scoring.scorers import Reduce
from lmgym.text import Replies
from lmgym.training.objectives import Batch
from reward_models.data import PairExample
from reward_models.losses import bradley_terry, cross_entropy, multi_label_bce, plackett_luce, regression
from reward_models.metrics.labels import MISSING


def _batch(model: ScoringModel, pad_id: int, items: Sequence[tuple[Any, bool]]) -> Batch:
    """The part of a batch that all objectives share; `count` is the items unless it is replaced."""
    rows = [example.replies for example, _ in items]
    number = sum(counts for _, counts in items)
    return {
        "inputs": model.collate(rows, pad_id),
        "items": number,
        "count": number,
        "origins": [example.origin for example, _ in items],
        "tokens": sum(row.tokens for row, (_, counts) in zip(rows, items, strict=True) if counts),
    }


@dataclass(frozen=True)
class Pairwise:
    """Bradley-Terry on pairs; scores are [chosen, rejected] pair after pair."""

    model: ScoringModel
    pad_id: int
    centering: float = 0.0

    def collate(self, items: Sequence[tuple[PairExample, bool]]) -> Batch:
        """A batch of pairs; one that does not count is a filler with weight 0."""
        return {
            **_batch(self.model, self.pad_id, items),
            "margins": torch.tensor([example.margin for example, _ in items]),
            "preferences": torch.tensor([example.preference for example, _ in items]),
            "counts": torch.tensor([counts for _, counts in items]),
        }

    def loss(self, scores: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Bradley-Terry over the pairs that count."""
        chosen, rejected = scores.view(-1, 2).unbind(-1)
        if batch["items"] < len(batch["counts"]):  # a filler: weight 0, but its backward runs
            return scores.sum() * 0.0, batch["counts"].sum()
        return bradley_terry(chosen, rejected, batch["margins"], self.centering, preference=batch["preferences"])

    def tallies(self, scores: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        """Number of right pairs, and the sum of margins."""
        difference = (scores[0::2, 0] - scores[1::2, 0]).float()
        return {
            "accuracy": ((difference > 0) & batch["counts"]).sum(),
            "margin": (difference * batch["counts"]).sum(),
        }


@dataclass(frozen=True)
class LabelledExample:
    """One reply and what its user did: a class, a number or a vector of bits."""

    replies: Replies
    label: np.ndarray
    origin: str = ""
    """file:line of its row"""


@dataclass(frozen=True)
class Criterion:
    """A loss of logits [rows, outputs] against labels, and the reduction of logits to one score."""

    name: str
    kind: Literal["class", "number", "bits"]
    reduce: Reduce
    loss: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
    """(logits, labels) to (sum, count); missing labels have no weight"""
    tallies: Callable[[torch.Tensor, torch.Tensor], dict[str, torch.Tensor]]
    """(logits, labels) to sums over rows"""


def missing(labels: torch.Tensor) -> torch.Tensor:
    """True if a label is missing: -100 among classes, NaN among numbers."""
    return labels.isnan() if labels.is_floating_point() else labels == MISSING


def _class_tallies(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"label_accuracy": (logits.argmax(-1) == labels).sum()}


def _number_tallies(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"absolute_error": (logits[:, 0] - labels).abs().nansum()}


def _bit_tallies(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    present = ~labels.isnan()
    right = ((logits > 0) == (labels > 0.5)) & present
    return {"label_accuracy": (right.sum(-1) / present.sum(-1).clamp(min=1)).sum()}


CROSS_ENTROPY = Criterion("cross entropy", "class", "softmax[1]", cross_entropy, _class_tallies)
SQUARED_ERROR = Criterion(
    "squared error", "number", "logit", lambda logits, labels: regression(logits[:, 0], labels), _number_tallies
)
MULTI_LABEL_BCE = Criterion("binary cross entropy", "bits", "mean_sigmoid", multi_label_bce, _bit_tallies)


@dataclass(frozen=True)
class Labelled:
    """A criterion on the label of each reply."""

    model: ScoringModel
    pad_id: int
    criterion: Criterion

    def collate(self, items: Sequence[tuple[LabelledExample, bool]]) -> Batch:
        """A batch of replies; a filler is one whose label is missing. `count` is that of present labels."""
        labels = torch.from_numpy(np.stack([example.label for example, _ in items]))
        labels = labels.float() if labels.is_floating_point() else labels
        fillers = torch.tensor([not counts for _, counts in items])
        labels[fillers] = float("nan") if labels.is_floating_point() else MISSING
        batch = _batch(self.model, self.pad_id, items)
        return {**batch, "labels": labels, "count": int((~missing(labels)).sum())}

    def loss(self, scores: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The criterion over the labels that are present."""
        return self.criterion.loss(scores, batch["labels"])

    def tallies(self, scores: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        """The criterion's."""
        return self.criterion.tallies(scores, batch["labels"])


@dataclass(frozen=True)
class RankedExample:
    """k replies to one prompt, rank 1 the best. `prompt` numbers the distinct prompts."""

    replies: Replies
    ranks: tuple[int, ...]
    prompt: int
    origin: str = ""
    """file:line of its row"""


@dataclass(frozen=True)
class Ranked:
    """Plackett-Luce on k replies to a prompt; scores are reply after reply, group after group."""

    model: ScoringModel
    pad_id: int

    def collate(self, items: Sequence[tuple[RankedExample, bool]]) -> Batch:
        """A batch of groups, each with as many replies as it has."""
        groups = [example.ranks for example, _ in items]
        sizes = torch.tensor([len(ranks) for ranks in groups])
        exists = torch.arange(int(sizes.max())) < sizes[:, None]
        ranks = torch.ones(exists.shape, dtype=torch.int64)
        ranks[exists] = torch.tensor([rank for group in groups for rank in group])
        counts = torch.tensor([counts for _, counts in items])
        batch = _batch(self.model, self.pad_id, items)
        return {**batch, "ranks": ranks, "exists": exists, "counts": counts}

    def loss(self, scores: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Plackett-Luce over the groups that count."""
        return plackett_luce(self._grid(scores, batch), batch["ranks"], batch["exists"] & batch["counts"][:, None])

    def tallies(self, scores: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        """Number of groups whose best reply by score is one that people ranked best."""
        grid = self._grid(scores, batch).masked_fill(~batch["exists"], -torch.inf)
        best = batch["ranks"].masked_fill(~batch["exists"], torch.iinfo(torch.int64).max).amin(1)
        found = batch["ranks"].gather(1, grid.argmax(1)[:, None])[:, 0]
        return {"top_1_acc": ((found == best) & batch["counts"]).sum()}

    def _grid(self, scores: torch.Tensor, batch: Batch) -> torch.Tensor:
        """[groups, most replies] scores, 0 where there is no reply."""
        grid = scores.new_zeros(batch["exists"].shape)
        grid[batch["exists"]] = scores[:, 0]
        return grid
