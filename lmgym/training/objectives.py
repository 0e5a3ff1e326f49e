"""Training objectives: from examples to a batch, and from outputs to a loss.

An objective has `collate(items)`, `loss(outputs, batch) -> (sum, count)` and `tallies(outputs, batch)`, sums that are
added over ranks and updates before anything is divided. A batch has two counts: `items`, the denominator of rates and
tallies, and `count`, the denominator of the loss, such as the number of labels that are present.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

Batch = dict[str, Any]
BeforeUpdate = Callable[[torch.nn.Module, Sequence[Batch], torch.device], None]
"""(model with its wrappers, this rank's micro-batches of an update, device); collective"""


class Objective(Protocol):
    """A loss as `ObjectiveTrainer` uses it."""

    def collate(self, items: Sequence[tuple[Any, bool]]) -> Batch:
        """(example, counts) items as a batch: model `inputs`, `items`, `count`, `tokens`, `origins`, and labels."""

    def loss(self, outputs: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The model's raw outputs to (sum, count)."""

    def tallies(self, outputs: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        """Sums over the items that count, for the training metrics."""


class Kept(Protocol):
    """An object whose state is in checkpoints."""

    def state_dict(self) -> dict[str, Any]:
        """Its state, equal on all ranks."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state; that of a checkpoint that has none is empty."""


def out_of_memory(inputs: Batch) -> str:
    """The message about a micro-batch that does not fit into memory."""
    tensors = {name: value for name, value in inputs["inputs"].items() if isinstance(value, torch.Tensor)}
    shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in tensors.items()) or "packed"
    return (
        f"out of memory in a micro-batch of {len(inputs['origins'])} examples, {inputs['tokens']:,} tokens ({shapes}); "
        "needed: a smaller --micro_batch, --tokens_per_micro_batch or --max_length, --gradient_checkpointing, or a "
        "higher ZeRO stage"
    )
