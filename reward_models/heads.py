"""K heads on one trunk: an ensemble in one pass, whose heads differ by their starts and their bootstrap of the pairs.

Each head learns from the pairs with Poisson(1) weights of its own, which is a bootstrap of rows that come one by one,
and starts at random weights of its own. A linear head with a linear frozen random prior, f + p with f from 0, is a head
that starts at p (Osband et al. 2018): in directions that no pair determines, heads stay apart. Weight decay would pull
them to 0, and together.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lmgym.models.forward.scoring_model import ScoringModel
from lmgym.training.objectives import Batch
from reward_models.data import PairExample
from reward_models.losses import bradley_terry
from reward_models.objectives import Pairwise

MOST_DRAWN = 12  # P(Poisson(1) > 12) is below 1e-10
POISSON = np.cumsum([math.exp(-1) / math.factorial(n) for n in range(MOST_DRAWN + 1)])
"""the distribution function of Poisson(1) at 0, 1, ..."""


def bootstrap_weights(seed: int, row: str, heads: int) -> list[int]:
    """The count of a row in each head's bootstrap sample: Poisson(1), a function of seed, row and head only."""
    digest = hashlib.shake_128(f"{seed} {row}".encode()).digest(8 * heads)
    uniform = np.frombuffer(digest, dtype="<u8") / 2.0**64
    return np.searchsorted(POISSON, uniform, side="right").clip(0, MOST_DRAWN).tolist()


@dataclass(frozen=True)
class PairwiseHeads:
    """Bradley-Terry of every head on its bootstrap of the pairs, mean over the heads."""

    model: ScoringModel
    pad_id: int
    heads: int
    seed: int
    centering: float = 0.0

    def collate(self, items: Sequence[tuple[PairExample, bool]]) -> Batch:
        """A batch of pairs, as of one head, with the weights [pairs, heads]."""
        weights = [bootstrap_weights(self.seed, example.origin, self.heads) for example, _ in items]
        batch = Pairwise(self.model, self.pad_id).collate(items)
        return {**batch, "weights": torch.tensor(weights, dtype=torch.float32)}

    def loss(self, scores: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Sum over the pairs that count, mean over heads; the count is that of the pairs, whatever their weights."""
        chosen, rejected = scores.view(-1, 2, self.heads).unbind(1)
        if batch["items"] < len(batch["counts"]):  # a filler: weight 0, but its backward runs
            return scores.sum() * 0.0, batch["counts"].sum()
        margins, preferences = (batch[name][:, None].expand_as(chosen) for name in ("margins", "preferences"))
        weights = batch["weights"] / self.heads
        total, _ = bradley_terry(chosen, rejected, margins, self.centering, weights, preferences)
        return total, batch["counts"].sum()

    def tallies(self, scores: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        """Those of the heads' mean."""
        return Pairwise(self.model, self.pad_id).tallies(scores.mean(-1, keepdim=True), batch)
