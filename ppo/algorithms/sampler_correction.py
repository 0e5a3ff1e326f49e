"""Sampler and trainer may differ, by their engine, their precision or an update: how much, and weights that correct it.

A weight is p_trainer / p_sampler, of the policy before the updates: importance sampling of the replies.
"""

from typing import Literal

import torch

ROUNDING = 1e-4  # nats by which two computations in fp32 may differ: no difference


def sampler_weights(
    trainer: torch.Tensor, sampler: torch.Tensor, lengths: torch.Tensor,
    mode: Literal["none", "token_truncate", "sequence_mask"], cap: float,
) -> torch.Tensor:  # fmt: skip
    """Weights [M] of the losses of sampled tokens, from their log-probabilities [M].

    token_truncate: p_trainer / p_sampler of each token, at most `cap` (Yao et al. 2025). sequence_mask: the product
    over a reply's tokens, whose numbers are `lengths` [R], or 0 if it is above `cap`, as in TRL. Differences of at most
    ROUNDING count as none, so that one engine gives exactly 1.
    """
    if mode == "none":
        return torch.ones_like(trainer)
    difference = trainer - sampler
    difference = torch.where(difference.abs() <= ROUNDING, 0.0, difference)
    if mode == "token_truncate":
        return difference.exp().clamp(max=cap)
    replies = torch.arange(len(lengths)).repeat_interleave(lengths)
    weights = torch.zeros(len(lengths)).index_add_(0, replies, difference).exp()
    return torch.where(weights > cap, 0.0, weights)[replies]


def gap_sums(trainer: torch.Tensor, sampler: torch.Tensor) -> dict[str, float]:
    """Sums over sampled tokens [M] of log(q / p), whose mean estimates KL(sampler || trainer) in nats, and of
    (p / q)^2 - 1, whose mean estimates chi-square of the trainer's p against the sampler's q.
    """
    difference = (trainer - sampler).double()
    return {"kl": -difference.sum().item(), "chi_square": torch.expm1((2 * difference).clamp(max=80)).sum().item()}
