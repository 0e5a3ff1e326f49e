"""The evaluation on held-out conversations during training, on all ranks."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from lmgym.data.batching import batches_of_rank, length_batches
from lmgym.distributed.ranks import rank, sum_over_ranks, world_size
from lmgym.training.objectives import Objective
from lmgym.training.probes import Report
from sft.tokenization import Example

MOST_NATS = 700.0  # exp of more overflows a float


class HeldOutProbe:
    """Perplexity and accuracy on the outputs of held-out conversations, from sums over all ranks, each row once."""

    loss = "loss"
    shown: Mapping[str, str] = {
        "perplexity": "perplexity of an output token",
        "token_accuracy": "likeliest token right",
        "loss": "loss an output token",
    }

    def __init__(self, examples: Sequence[Example], objective: Objective, batch_tokens: int) -> None:
        self.examples, self.objective = examples, objective
        self.batches = length_batches([len(example.ids) for example in examples], batch_tokens)
        self.tokens = np.array([len(example.targets) for example in examples])
        self.sums = np.zeros((len(examples), 3))
        self.report = Report({}, {})

    def measure(self, model: torch.nn.Module, device: torch.device) -> dict[str, float]:
        """Perplexity, accuracy and loss, of all output tokens."""
        # columns: nats and right tokens of a row; the loss of a batch, in its first row
        sums = torch.zeros(len(self.examples), 3, dtype=torch.float64, device=device)
        for rows, counts in batches_of_rank(self.batches, world_size(), rank()):
            batch = self.objective.collate([(self.examples[i], True) for i in rows])
            batch = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
            with torch.no_grad():
                logits = model(**{name: value.to(device) for name, value in batch["inputs"].items()})
                if counts:
                    self._add(sums, rows, logits, batch)
        self.sums = sum_over_ranks(sums).cpu().numpy()
        nats, right, loss = (self.sums.sum(0) / self.tokens.sum()).tolist()
        metrics = {"perplexity": float(np.exp(min(nats, MOST_NATS))), "token_accuracy": right, "loss": loss}
        self.report = Report(metrics, {})
        return metrics

    def _add(self, sums: torch.Tensor, rows: list[int], logits: torch.Tensor, batch: dict[str, Any]) -> None:
        targets = batch["targets"]
        owners = torch.tensor(rows, device=logits.device).repeat_interleave(
            torch.from_numpy(self.tokens[rows]).to(logits.device)
        )
        nats = F.cross_entropy(logits, targets, reduction="none").double()
        sums[:, 0].index_add_(0, owners, nats)
        sums[:, 1].index_add_(0, owners, (logits.argmax(-1) == targets).double())
        sums[rows[0], 2] += self.objective.loss(logits, batch)[0].double()

    def lines(self) -> Iterator[dict[str, Any]]:
        """Lines of held_out.jsonl: origin, number of output tokens, nats per token and share of right ones."""
        for example, tokens, (nats, right, _) in zip(self.examples, self.tokens.tolist(), self.sums, strict=True):
            yield {"row": example.origin, "tokens": tokens, "loss": nats / tokens, "accuracy": right / tokens}
