"""How far 16 bits are from fp32 on the policy itself: what sampler and trainer may differ by.

Design decisions:
- One yardstick for both: the trainer's own forward, over the same rows, in fp32. Where both compute the same function
  their distances from it are alike, whatever the model: 0.97 to 1.15 of each other on SmolLM2-135M, with DeepSpeed or
  without, where both are 0.03 nats a token. A position off by one within a reply makes that 2.1 or more, a temperature
  off by 5% 2.3 or more.
- "fp32" is of the weights as training has them: fp32 without DeepSpeed, under it those that are rounded to 16 bits, so
  that what is measured is the rounding of the computation. A layer's weights are widened while it runs, the embeddings
  and the head throughout: a whole copy in fp32 may not fit.
- Under ZeRO-3 the weights are those of the sampler's copy, which each rank has whole: no rank waits for another.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lmgym.distributed.ranks import sum_over_ranks
from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.logprobs import token_logprobs
from lmgym.models.forward.packed_rows import PackedRows
from lmgym.models.forward.structure import replaced_forwards
from ppo.experience import Batch
from ppo.rollouts import Rollouts

ROWS = 32  # of each rank that are measured: some hundred tokens, and a forward that no user notices
ROWS_AT_ONCE = 4
SAMPLER_FACTOR = 1.5  # distance of the sampler from fp32, as a multiple of the trainer's own: see above
LEAST = 1e-3  # nats a token that change no update: a ratio of 1.001


@dataclass(frozen=True)
class Rounding:
    """Mean absolute differences of log-probabilities from the trainer's forward in fp32, nats a token, all ranks."""

    trainer: float
    """of the trainer's forward in 16 bits"""
    sampler: float
    tokens: int

    @property
    def allowed(self) -> float:
        """Most that `sampler` may be; more where few tokens were compared, whose mean is uncertain."""
        return SAMPLER_FACTOR * _of_few(self.trainer, self.tokens)


def allowed_apart(trainer: float, tokens: int) -> float:
    """Most nats a token that two computations in 16 bits may differ by on average: each has a distance from fp32, one
    of them `trainer` and the other up to SAMPLER_FACTOR times that.
    """
    return (1 + SAMPLER_FACTOR) * _of_few(trainer, tokens)


def _of_few(gap: float, tokens: int) -> float:
    """A mean with what chance may add to it: single tokens spread about as much as their mean."""
    return max(LEAST, gap) * (1 + 2 / max(1, tokens) ** 0.5)


@torch.no_grad()
def measure_rounding(decoder: Decoder, rollouts: Rollouts, temperature: float, device: torch.device) -> Rounding:
    """Of up to ROWS rows of each rank, whose log-probabilities in 16 bits are known. Collective.

    `decoder` is of the policy with whole weights.
    """
    chosen = np.unique(np.linspace(0, len(rollouts.rows) - 1, min(ROWS, len(rollouts.rows))).astype(np.int64))
    sums = torch.zeros(3, dtype=torch.float64)
    for rows in np.split(chosen, range(ROWS_AT_ONCE, len(chosen), ROWS_AT_ONCE)):
        if len(rows):
            batch = Batch.of(rollouts, rows, device)
            exact = logprobs_in_fp32(decoder, batch.rows, batch.targets, temperature).cpu()
            both = (rollouts.logprobs[batch.places], rollouts.sampler_logprobs[batch.places])
            sums += torch.tensor([*((one - exact).abs().double().sum() for one in both), len(exact)])
    trainer, sampler, tokens = sum_over_ranks(sums).tolist()
    return Rounding(trainer / max(1, tokens), sampler / max(1, tokens), int(tokens))


def logprobs_in_fp32(decoder: Decoder, batch: PackedRows, targets: torch.Tensor, temperature: float) -> torch.Tensor:
    """Log-probabilities [M] of targets [M] at what the batch reads, computed in fp32 whatever type the weights have."""
    blocks = list(decoder.blocks)
    of_layers = {id(p) for block in blocks for p in block.parameters()}
    with _widened([p for p in decoder.model.parameters() if id(p) not in of_layers]):
        with replaced_forwards({block: _in_fp32(block) for block in blocks}):
            normed = decoder.hidden(batch)
        return token_logprobs(decoder, normed, targets, temperature)


def _in_fp32(block: torch.nn.Module) -> Callable:
    forward = block.forward

    def widened(*args, **kwargs):
        with _widened(list(block.parameters())):
            return forward(*args, **kwargs)

    return widened


@contextlib.contextmanager
def _widened(parameters: Sequence[torch.Tensor]) -> Iterator[None]:
    """These in fp32 for the length of a `with`; behind it they are the very tensors that they were."""
    kept = [(parameter, parameter.data) for parameter in parameters]
    try:
        for parameter, data in kept:
            parameter.data = data.float()
        yield
    finally:
        for parameter, data in kept:
            parameter.data = data
