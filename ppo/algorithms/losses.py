"""Losses of PPO as (sum, count), the caller divides by the count over ranks and accumulation; and its KL estimates.

All tensors are [batch, time], padded, with a mask of the tokens that the policy sampled itself. Computed in fp32.
"""

from typing import Literal

import torch

from ppo.algorithms.masking import check_shapes, check_some, log_ratio, masked

MOST_LOG_RATIO = 20.0  # e^20 is 5e8: more would only overflow
MOST_EXPONENT = 80.0  # e^88 is the largest that fp32 holds

SumAndCount = tuple[torch.Tensor, torch.Tensor]


def policy_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    clip: float = 0.2,
) -> SumAndCount:
    """Sum of max(-A rho, -A clip(rho, 1 +- clip)) with rho = p / p_old (Schulman et al. 2017, eq. 7).

    log rho is clamped to +-20; beyond there is no gradient. Raises ValueError for shapes that differ.
    """
    check_shapes(logprobs, old_logprobs, advantages, mask)
    free, clipped = _surrogates(logprobs, old_logprobs, advantages, mask, clip)
    return torch.maximum(free, clipped).sum(), mask.bool().sum()


def clip_fraction(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    clip: float = 0.2,
) -> SumAndCount:
    """The number of tokens whose loss is the clipped one, so that they have no gradient; and of all tokens."""
    check_shapes(logprobs, old_logprobs, advantages, mask)
    free, clipped = _surrogates(logprobs, old_logprobs, advantages, mask, clip)
    return (clipped > free).sum(), mask.bool().sum()


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


def kl_estimate(
    logprobs: torch.Tensor,
    reference_logprobs: torch.Tensor,
    mask: torch.Tensor,
    kind: Literal["k1", "k2", "k3"] = "k1",
) -> torch.Tensor:
    """KL(policy || reference) in nats a token, from tokens that the policy sampled: the mean over the mask.

    With x = log p - log p_ref: k1 is x, k2 is x^2 / 2, k3 is exp(-x) - 1 + x, never negative (Schulman 2020), where
    -x counts for at most 80 in the exponential. Raises ValueError for shapes that differ, an empty mask, another kind.
    """
    check_shapes(logprobs, reference_logprobs, mask)
    check_some(mask)
    x = log_ratio(logprobs, reference_logprobs, mask)
    if kind == "k1":
        estimates = x
    elif kind == "k2":
        estimates = x**2 / 2
    elif kind == "k3":
        estimates = torch.expm1((-x).clamp(max=MOST_EXPONENT)) + x
    else:
        raise ValueError(f"kind={kind!r}; needed: k1, k2 or k3")
    return (estimates.sum(dtype=torch.float64) / mask.bool().sum()).to(x.dtype)


def _surrogates(
    logprobs: torch.Tensor, old_logprobs: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor, clip: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """-A rho and -A clip(rho, 1 +- clip), [batch, time], 0 where masked."""
    ratio = log_ratio(logprobs, old_logprobs, mask).clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO).exp()
    advantages = masked(advantages, mask)
    return -advantages * ratio, -advantages * ratio.clamp(1 - clip, 1 + clip)
