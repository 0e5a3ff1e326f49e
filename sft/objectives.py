"""Objectives of SFT: from rows to a batch, and from the model's outputs at the places of output tokens to a loss.

`items` are output tokens here, so rates and accuracies are per token; `count` is the same number.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from lmgym.models.forward.policies import PolicyModel
from lmgym.training.objectives import Batch
from sft.losses import SumAndCount, soft_binary_entropy
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


def _nothing(outputs: torch.Tensor) -> SumAndCount:
    """The loss of a filler: 0, with a gradient of 0."""
    return outputs.sum() * 0.0, torch.zeros((), dtype=torch.int64, device=outputs.device)


@dataclass(frozen=True)
class NextToken:
    """Cross entropy of the outputs' tokens; the model's outputs are their log-probabilities and hits, [2, tokens]."""

    model: PolicyModel
    pad_id: int

    def collate(self, items: Items) -> Batch:
        """A batch of rows."""
        batch = _batch(self.model, self.pad_id, items)
        return batch | {"inputs": batch["inputs"] | {"labels": batch["targets"]}}

    def loss(self, outputs: torch.Tensor, batch: Batch) -> SumAndCount:
        """Over all targets."""
        if not batch["count"]:
            return _nothing(outputs)
        return -outputs[0].sum(), torch.full((), outputs.shape[1], device=outputs.device)

    def by_token(self, outputs: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """(nats, hits) of each target."""
        return -outputs[0], outputs[1]

    def tallies(self, outputs: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        """Number of right tokens."""
        return {"token_accuracy": outputs[1].sum() * (batch["count"] > 0)}


@dataclass(frozen=True)
class SoftTargets:
    """Binary cross entropy with a teacher's probability of each of its tokens; outputs are logits."""

    model: PolicyModel
    pad_id: int

    def collate(self, items: Items) -> Batch:
        """A batch of rows."""
        odds = torch.tensor([odd for row, _ in items for odd in row.probabilities or ()])
        return {**_batch(self.model, self.pad_id, items), "probabilities": odds}

    def loss(self, outputs: torch.Tensor, batch: Batch) -> SumAndCount:
        """Over all targets."""
        if not batch["count"]:
            return _nothing(outputs)
        return soft_binary_entropy(outputs, batch["targets"], batch["probabilities"])

    def by_token(self, outputs: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """(nats, hits) of each target."""
        targets = batch["targets"]
        return F.cross_entropy(outputs, targets, reduction="none"), (outputs.argmax(-1) == targets).float()

    def tallies(self, outputs: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        """Number of right tokens."""
        return {"token_accuracy": (outputs.argmax(-1) == batch["targets"]).sum() * (batch["count"] > 0)}
