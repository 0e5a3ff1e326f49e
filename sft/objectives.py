"""Objectives of SFT: from rows to a batch, and from logits at the places of outputs to a loss.

`items` are output tokens here, so rates and accuracies are per token; `count` is the same number.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lmgym.models.forward.policies import PolicyModel
from lmgym.training.objectives import Batch
from sft.losses import SumAndCount, next_token_loss, soft_binary_entropy
from sft.tokenization import Example

Items = Sequence[tuple[Example, bool]]


def _batch(model: PolicyModel, pad_id: int, items: Items) -> Batch:
    """The part of a batch that both objectives share. A filler is alone in its batch and has no weight."""
    rows = [row for row, _ in items]
    number = sum(len(row.targets) for row, counts in items if counts)
    return {
        "inputs": model.collate([row.ids for row in rows], [row.places for row in rows]),
        "items": number,
        "count": number,
        "origins": [row.origin for row in rows],
        "tokens": sum(len(row.ids) for row, counts in items if counts),
        "targets": torch.tensor([target for row in rows for target in row.targets]),
    }


def _tallies(logits: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
    """Number of targets that are the likeliest token."""
    return {"accuracy": (logits.argmax(-1) == batch["targets"]).sum() * (batch["count"] > 0)}


def _nothing(logits: torch.Tensor) -> SumAndCount:
    """The loss of a filler: 0, with a gradient of 0."""
    return logits.sum() * 0.0, torch.zeros((), dtype=torch.int64, device=logits.device)


@dataclass(frozen=True)
class NextToken:
    """Cross entropy of the outputs' tokens."""

    model: PolicyModel
    pad_id: int

    def collate(self, items: Items) -> Batch:
        """A batch of rows."""
        return _batch(self.model, self.pad_id, items)

    def loss(self, logits: torch.Tensor, batch: Batch) -> SumAndCount:
        """Over all targets."""
        return next_token_loss(logits, batch["targets"]) if batch["count"] else _nothing(logits)

    def tallies(self, logits: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        """Number of right tokens."""
        return _tallies(logits, batch)


@dataclass(frozen=True)
class SoftTargets:
    """Binary cross entropy with a teacher's probability of each of its tokens."""

    model: PolicyModel
    pad_id: int

    def collate(self, items: Items) -> Batch:
        """A batch of rows."""
        odds = torch.tensor([odd for row, _ in items for odd in row.probabilities or ()])
        return {**_batch(self.model, self.pad_id, items), "probabilities": odds}

    def loss(self, logits: torch.Tensor, batch: Batch) -> SumAndCount:
        """Over all targets."""
        if not batch["count"]:
            return _nothing(logits)
        return soft_binary_entropy(logits, batch["targets"], batch["probabilities"])

    def tallies(self, logits: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        """Number of right tokens."""
        return _tallies(logits, batch)
