"""Masks: every formula compares shapes first, and replaces the numbers of tokens that were not sampled by 0.

Masked places may hold anything, NaN and infinity too: they are replaced before any arithmetic, so that they affect
neither results nor gradients (0 times NaN would be NaN).
"""

import torch

LEAST_LOGPROB = -1e9  # of an impossible token: the difference of two is 0, not NaN


def check_shapes(*tensors: torch.Tensor) -> None:
    """Raises ValueError unless all are [batch, time] of one shape: broadcasting would hide the mistake."""
    shapes = [list(tensor.shape) for tensor in tensors]
    if len(shapes[0]) != 2 or any(shape != shapes[0] for shape in shapes):
        raise ValueError(f"shapes {shapes}; needed: [batch, time], the same for all")


def check_some(mask: torch.Tensor) -> None:
    """Raises ValueError for an empty mask."""
    if not mask.any():
        raise ValueError(f"a mask of shape {list(mask.shape)} without a token; needed: at least one")


def masked(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Values[batch, time] where the mask is true, 0 elsewhere; in fp32, or in float64 where they are."""
    kept = torch.where(mask.bool(), values, torch.zeros_like(values))
    return kept.to(torch.promote_types(values.dtype, torch.float32))


def log_ratio(logprobs: torch.Tensor, others: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """log p - log q[batch, time] in nats, 0 where masked; finite also where either is -inf."""
    return masked(logprobs, mask).clamp(min=LEAST_LOGPROB) - masked(others, mask).clamp(min=LEAST_LOGPROB)
