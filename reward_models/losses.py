"""Losses of scorers. Each returns (sum, count): the caller divides by the count over ranks and accumulation."""

import torch
import torch.nn.functional as F


def bradley_terry(
    chosen: torch.Tensor, rejected: torch.Tensor, margin: torch.Tensor | None = None, centering: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """-log sigma(chosen - rejected - margin), summed over pairs (Bradley and Terry 1952; margin: Touvron et al. 2023).

    chosen, rejected, margin: [pairs]; computed in fp32. `centering` adds its multiple of (chosen + rejected)^2, which
    keeps scores around 0 (Eisenstein et al. 2023). Raises ValueError where the shapes differ.
    """
    if chosen.shape != rejected.shape or (margin is not None and margin.shape != chosen.shape):
        shapes = [tuple(t.shape) for t in (chosen, rejected, margin) if t is not None]
        raise ValueError(f"bradley_terry takes tensors of one shape; found {', '.join(map(str, shapes))}")
    chosen, rejected = chosen.float(), rejected.float()
    difference = chosen - rejected if margin is None else chosen - rejected - margin.float()
    losses = -F.logsigmoid(difference)
    if centering:
        losses = losses + centering * (chosen + rejected).square()
    return losses.sum(), torch.tensor(chosen.numel(), device=chosen.device)
