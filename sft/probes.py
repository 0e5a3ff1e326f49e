"""The evaluation on held-out conversations during training, on all ranks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from lmgym.data.batching import batches_of_rank, length_batches
from lmgym.distributed.ranks import rank, sum_over_ranks, world_size
from lmgym.statistics import Estimate, Ratio
from lmgym.text import Conversation
from lmgym.training.probes import Report
from sft.objectives import NextToken, SoftTargets
from sft.tokenization import Example

MOST_NATS = 700.0  # exp of more overflows a float


def exponential(nats: Estimate) -> Estimate:
    """e to a mean loss and to the ends of its interval."""
    of = [None if x is None else float(np.exp(min(x, MOST_NATS))) for x in (nats.value, nats.low, nats.high)]
    return replace(nats, value=of[0], low=of[1], high=of[2])


class HeldOutProbe:
    """Perplexity and accuracy on the outputs of held-out conversations, from sums over all ranks, each row once."""

    loss = "loss"
    shown: Mapping[str, str] = {
        "perplexity": "perplexity of an output token",
        "token_accuracy": "accuracy of tokens",
        "loss": "loss an output token",
    }

    def __init__(self, examples: Sequence[Example], objective: NextToken | SoftTargets, batch_tokens: int) -> None:
        self.examples, self.objective = examples, objective
        self.batches = length_batches([len(example.ids) for example in examples], batch_tokens)
        self.tokens = np.array([len(example.targets) for example in examples])
        numbers: dict[Conversation, int] = {}
        self.prompts = np.array([numbers.setdefault(example.prompt, len(numbers)) for example in examples])
        self.sums = np.zeros((len(examples), 3))
        self.report = Report({}, {})

    def measure(self, model: torch.nn.Module, device: torch.device) -> dict[str, float]:
        """Perplexity, loss and accuracy, of all output tokens; the intervals are over prompts."""
        # columns: nats and right tokens of a row; the loss of a batch, in its first row
        sums = torch.zeros(len(self.examples), 3, dtype=torch.float64, device=device)
        for rows, counts in batches_of_rank(self.batches, world_size(), rank()):
            batch = self.objective.collate([(self.examples[i], True) for i in rows])
            batch = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
            with torch.no_grad():
                outputs = model(**{name: value.to(device) for name, value in batch["inputs"].items()})
                if counts:
                    self._add(sums, rows, outputs, batch)
        self.sums = sum_over_ranks(sums).cpu().numpy()
        loss = float(self.sums[:, 2].sum() / self.tokens.sum())
        # the tokens of a reply are no independent draws, nor are the replies to one prompt
        nats, hits, tokens = (
            np.bincount(self.prompts, values).astype(np.float64)
            for values in (self.sums[:, 0], self.sums[:, 1], self.tokens)
        )
        accuracy = Report.of("token_accuracy", Ratio(hits, tokens, (0, 1)).estimate, "prompt")
        perplexity = Report.of("perplexity", exponential(Ratio(nats, tokens).estimate), "prompt")
        metrics = {**perplexity.metrics, "loss": loss, **accuracy.metrics}
        self.report = replace(accuracy, metrics=metrics, undefined=perplexity.undefined | accuracy.undefined)
        return metrics

    def _add(self, sums: torch.Tensor, rows: list[int], outputs: torch.Tensor, batch: dict[str, Any]) -> None:
        owners = torch.tensor(rows, device=outputs.device).repeat_interleave(
            torch.from_numpy(self.tokens[rows]).to(outputs.device)
        )
        for column, found in enumerate(self.objective.by_token(outputs, batch)):
            sums[:, column].index_add_(0, owners, found.double())
        sums[rows[0], 2] += self.objective.loss(outputs, batch)[0].double()

    def lines(self) -> Iterator[dict[str, Any]]:
        """Lines of held_out.jsonl: origin, number of output tokens, nats per token and share of right ones."""
        for example, tokens, (nats, right, _) in zip(self.examples, self.tokens.tolist(), self.sums, strict=True):
            yield {"row": example.origin, "tokens": tokens, "loss": nats / tokens, "token_accuracy": right / tokens}
