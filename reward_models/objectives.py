"""What a scorer is trained for: how examples become a batch, and how scores become a loss.

An objective has `collate(items)`, `loss(scores, batch) -> (sum, count)` and `tallies(scores, batch)`, sums that are
added over ranks and updates before anything is divided.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from lmgym.models import ScoringModel
from reward_models.data import PairExample
from reward_models.losses import bradley_terry

Batch = dict[str, Any]


class Objective(Protocol):
    """What `RewardTrainer` needs to know of a loss."""

    def collate(self, items: Sequence[tuple[Any, bool]]) -> Batch:
        """(example, counts) items as a batch: `inputs` of the model, `items` and `tokens` that count, and labels."""
        ...

    def loss(self, scores: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Raw logits [replies, labels] to (sum, count)."""
        ...

    def tallies(self, scores: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        """Sums over the items that count, for the training metrics."""
        ...


@dataclass(frozen=True)
class Pairwise:
    """Chosen above rejected: scores come as [chosen, rejected] pair after pair."""

    model: ScoringModel
    pad_id: int
    centering: float = 0.0

    def collate(self, items: Sequence[tuple[PairExample, bool]]) -> Batch:
        """A batch of pairs; one that does not count is a filler with weight 0."""
        examples = [example for example, _ in items]
        return {
            "inputs": self.model.collate([example.replies for example in examples], self.pad_id),
            "margins": torch.tensor([example.margin for example in examples]),
            "counts": torch.tensor([counts for _, counts in items]),
            "items": sum(counts for _, counts in items),
            "tokens": sum(example.replies.tokens for example, counts in items if counts),
        }

    def loss(self, scores: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Bradley-Terry over the pairs that count."""
        chosen, rejected = scores.view(-1, 2).unbind(-1)
        if batch["items"] < len(batch["counts"]):  # a filler: it counts for nothing, but its gradient is asked for
            return scores.sum() * 0.0, batch["counts"].sum()
        return bradley_terry(chosen, rejected, batch["margins"], self.centering)

    def tallies(self, scores: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        """Right pairs and the sum of margins."""
        difference = (scores[0::2, 0] - scores[1::2, 0]).float()
        return {
            "accuracy": ((difference > 0) & batch["counts"]).sum(),
            "margin": (difference * batch["counts"]).sum(),
        }
