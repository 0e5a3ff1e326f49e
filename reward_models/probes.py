"""Evaluations during training: on every rank (a sharded forward is collective), from sums, data loaded once."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from lmgym.batching import length_batches
from lmgym.engine import rank, sum_over_ranks, world_size
from lmgym.models import ScoringModel
from reward_models.data import PairExample
from reward_models.metrics import PairReport, pair_metrics


class Probe(Protocol):
    """An evaluation of the model as it is now."""

    def measure(self, model: torch.nn.Module, device: torch.device) -> dict[str, float]:
        """Metrics by name; called on all ranks, with the model in eval mode."""
        ...


class PairProbe:
    """How the model ranks held-out pairs."""

    def __init__(
        self,
        examples: Sequence[PairExample],
        model: ScoringModel,
        pad_id: int,
        batch_tokens: int,
        bootstrap_samples: int = 1000,
    ) -> None:
        self.examples, self.pad_id, self.bootstrap_samples = examples, pad_id, bootstrap_samples
        self.scoring = model
        self.batches = length_batches([example.replies.tokens for example in examples], batch_tokens)
        self.report = PairReport({}, {})
        self.scores = np.zeros((len(examples), 2))

    def measure(self, model: torch.nn.Module, device: torch.device) -> dict[str, float]:
        """Accuracy with its interval, margin, calibration and length bias over all pairs, each counted once."""
        scores = torch.zeros(len(self.examples), 2, dtype=torch.float64, device=device)
        ranks = world_size()
        for turn in range(-(-len(self.batches) // ranks)):
            mine = turn * ranks + rank()
            # a rank whose turn is empty runs along on another's batch: under ZeRO-3 a forward is collective
            batch = self.batches[min(mine, len(self.batches) - 1)]
            inputs = self.scoring.collate([self.examples[i].replies for i in batch], self.pad_id)
            with torch.no_grad():
                logits = model(**{name: value.to(device) for name, value in inputs.items()})
            if mine < len(self.batches):
                scores[batch] = logits.view(-1, 2).double()
        self.scores = sum_over_ranks(scores).cpu().numpy()
        lengths = np.array([example.lengths for example in self.examples])
        self.report = pair_metrics(
            self.scores[:, 0],
            self.scores[:, 1],
            np.array([example.prompt for example in self.examples]),
            lengths[:, 0],
            lengths[:, 1],
            bootstrap_samples=self.bootstrap_samples,
        )
        return self.report.metrics
