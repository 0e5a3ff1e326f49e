"""What every formula of PPO does first: compare shapes, and put 0 where no token of the policy's own stands.

A masked place may hold anything, NaN and infinity too: inputs are replaced there before any arithmetic, so that neither
a result nor a gradient can come from it (0 times NaN would be NaN).
"""

import torch

LEAST_LOGPROB = -1e9  # of a token that is as good as impossible: the difference of two such is 0, not NaN


def check_shapes(*tensors: torch.Tensor) -> None:
    """Raises ValueError unless all are [batch, time] of one shape: broadcasting would hide the mistake."""
    shapes = [list(tensor.shape) for tensor in tensors]
    if len(shapes[0]) != 2 or any(shape != shapes[0] for shape in shapes):
        raise ValueError(f"shapes {shapes}; needed: [batch, time], the same for all")


def check_some(mask: torch.Tensor) -> None:
    """Raises ValueError for a mask in which nothing counts."""
    if not mask.any():
        raise ValueError(f"a mask of shape {list(mask.shape)} in which no token counts; needed: at least one")


def masked(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Values[batch, time] where the mask is true, 0 elsewhere; in fp32, or in float64 where they are."""
    kept = torch.where(mask.bool(), values, torch.zeros_like(values))
    return kept.to(torch.promote_types(values.dtype, torch.float32))


def log_ratio(logprobs: torch.Tensor, others: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """log p - log q[batch, time] in nats, 0 where masked; finite also where either is -inf."""
    return masked(logprobs, mask).clamp(min=LEAST_LOGPROB) - masked(others, mask).clamp(min=LEAST_LOGPROB)
