"""Losses of tokens. All tensors are [batch, time], with a mask of the sampled tokens; computed in fp32.

A loss of the policy is a number per token, which its caller weighs (`ppo.algorithms.learning`) and divides by the count
over ranks and accumulation. Ratios are p / p_old, given as their logarithms: see `ratios_of_replies`.
"""

import math
from typing import Literal, Protocol

import torch

from ppo.algorithms.masking import check_shapes, masked

MOST_LOG_RATIO = 20.0  # e^20 is 5e8
ROUNDING = 1e-4  # nats by which two computations in fp32 may differ: no difference

SumAndCount = tuple[torch.Tensor, torch.Tensor]


class TokenLoss(Protocol):
    """A loss of the policy."""

    def __call__(
        self,
        logprobs: torch.Tensor,
        log_ratios: torch.Tensor,
        advantages: torch.Tensor,
        mask: torch.Tensor,
        low: float,
        high: float,
        delta: float | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(the loss of each token, 0 where masked; bool: it has no gradient, being clipped)."""
        ...


def clipped_loss(
    logprobs: torch.Tensor,
    log_ratios: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    low: float = 0.2,
    high: float = 0.2,
    delta: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """max(-A rho, -A clip(rho, 1 - low, 1 + high)) (Schulman et al. 2017, eq. 7; two bounds: Yu et al. 2025, eq. 10).

    With `delta` rho is at most that where A is negative (dual clip, Ye et al. 2020). log rho is clamped to +-20; beyond
    there is no gradient. Raises ValueError for shapes that differ.
    """
    check_shapes(logprobs, log_ratios, advantages, mask)
    ratios, advantages = _exponential(log_ratios, mask), masked(advantages, mask)
    free = -advantages * (ratios if delta is None else ratios.clamp(max=delta))
    bounded = -advantages * ratios.clamp(1 - low, 1 + high)
    clipped = bounded > free
    if delta is not None:
        clipped = clipped | ((advantages < 0) & (ratios > delta))
    return torch.maximum(free, bounded), clipped


def cispo_loss(
    logprobs: torch.Tensor,
    log_ratios: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    low: float = 1.0,
    high: float = 4.0,
    delta: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """-A clip(rho, 1 - low, 1 + high) log p, without a gradient of the clipped rho (MiniMax 2025, eq. 4).

    Every token keeps its gradient, so none counts as clipped unless its rho is out of bounds. `delta` is not used.
    Raises ValueError for shapes that differ.
    """
    check_shapes(logprobs, log_ratios, advantages, mask)
    ratios = _exponential(log_ratios, mask).detach()
    bounded = ratios.clamp(1 - low, 1 + high)
    return -masked(advantages, mask) * bounded * masked(logprobs, mask), (bounded != ratios) & mask.bool()


def likelihood_loss(
    logprobs: torch.Tensor,
    log_ratios: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    low: float = 0.0,
    high: float = 0.0,
    delta: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """-A log p, the loss of SFT where A is 1; the ratio and its bounds are not used.

    Raises ValueError for shapes that differ.
    """
    check_shapes(logprobs, log_ratios, advantages, mask)
    return -masked(advantages, mask) * masked(logprobs, mask), torch.zeros_like(mask, dtype=torch.bool)


def ratios_of_replies(log_ratios: torch.Tensor, rows: torch.Tensor, replies: int) -> torch.Tensor:
    """Log ratios [1, M] as the mean over each one's reply (Zheng et al. 2025, eq. 7).

    `rows` [M] are the numbers of the replies, below `replies`.
    """
    sums = log_ratios.new_zeros(replies).index_add(0, rows, log_ratios[0])
    tokens = log_ratios.new_zeros(replies).index_add(0, rows, torch.ones_like(log_ratios[0]))
    return (sums / tokens.clamp(min=1))[rows][None]


def sampler_weights(
    trainer: torch.Tensor,
    sampler: torch.Tensor,
    lengths: torch.Tensor,
    mode: Literal["none", "token_truncate", "sequence_mask", "geometric_mask"],
    cap: float,
) -> torch.Tensor:
    """Weights [M] of the losses of sampled tokens, from their log-probabilities [M]: importance sampling.

    Sampler and trainer may differ, by their engine, their precision or an update, before the policy is updated.

    token_truncate: p_trainer / p_sampler of each token, at most `cap` (Yao et al. 2025). sequence_mask: the product
    over a reply's tokens, whose numbers are `lengths` [R], or 0 if it is above `cap`, as in TRL. geometric_mask: 1, or
    0 for a reply whose geometric mean of p_trainer / p_sampler is not within 1 / cap and cap. Differences of at most
    ROUNDING count as none, so that one engine gives exactly 1.
    """
    if mode == "none":
        return torch.ones_like(trainer)
    difference = trainer - sampler
    difference = torch.where(difference.abs() <= ROUNDING, 0.0, difference)
    if mode == "token_truncate":
        return difference.exp().clamp(max=cap)
    replies = torch.arange(len(lengths)).repeat_interleave(lengths)
    sums = torch.zeros(len(lengths)).index_add_(0, replies, difference)
    if mode == "geometric_mask":
        return ((sums / lengths).abs() <= math.log(cap)).float()[replies]
    weights = sums.exp()
    return torch.where(weights > cap, 0.0, weights)[replies]


def gap_sums(trainer: torch.Tensor, sampler: torch.Tensor) -> dict[str, float]:
    """Sums over sampled tokens [M] of log(q / p), whose mean estimates KL(sampler || trainer) in nats; of p / q, whose
    mean is 1 in expectation, and of its square, whose mean less 1 estimates chi-square of the trainer's p against the
    sampler's q; and the number of tokens whose p and q differ by a factor of 2 or more.
    """
    difference = (trainer - sampler).double()
    ratio = difference.clamp(max=40).exp()
    return {
        "kl": -difference.sum().item(),
        "ratio": ratio.sum().item(),
        "squares": ratio.square().sum().item(),
        "far": (difference.abs() >= math.log(2)).sum().item(),
    }


def value_loss(
    values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor, clip: float = 0.2
) -> SumAndCount:
    """Sum of 1/2 max((V - R)^2, (V_old + clip(V - V_old, +-clip) - R)^2).

    Raises ValueError for shapes that differ.
    """
    check_shapes(values, old_values, returns, mask)
    values, old_values, returns = (masked(one, mask) for one in (values, old_values, returns))
    near = torch.clamp(values, old_values - clip, old_values + clip)
    return torch.maximum((values - returns) ** 2, (near - returns) ** 2).sum() / 2, mask.bool().sum()


def _exponential(log_ratios: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Ratios [batch, time], 1 where masked."""
    return masked(log_ratios, mask).clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO).exp()
