"""What a model is trained for, as the trainer sees it: how examples become a batch, and outputs a loss.

An objective has `collate(items)`, `loss(outputs, batch) -> (sum, count)` and `tallies(outputs, batch)`, sums that are
added over ranks and updates before anything is divided. Two numbers of a batch are kept apart: `items`, what counts
and what rates and tallies are means of; and `count`, what the loss is the mean of, such as present labels.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch

Batch = dict[str, Any]


class Objective(Protocol):
    """What `ObjectiveTrainer` needs to know of a loss."""

    def collate(self, items: Sequence[tuple[Any, bool]]) -> Batch:
        """(example, counts) items as a batch: model `inputs`, `items`, `count`, `tokens`, `origins`, and labels."""
        ...

    def loss(self, outputs: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The model's raw outputs to (sum, count)."""
        ...

    def tallies(self, outputs: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        """Sums over the items that count, for the training metrics."""
        ...
