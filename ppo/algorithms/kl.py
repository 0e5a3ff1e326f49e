"""The KL to the reference: its estimates, its penalty in the rewards, and its coefficient.

Tensors are padded, [batch, time], with a mask of the sampled tokens.
"""

import math
from collections.abc import Mapping
from typing import Literal

import torch

from ppo.algorithms.masking import check_shapes, log_ratio, masked

MOST_EXPONENT = 80.0  # e^88 is the largest that fp32 holds
MOST_CHANGE = 0.2  # of the KL coefficient, in an update of n = horizon samples


def kl_estimates(
    logprobs: torch.Tensor,
    reference_logprobs: torch.Tensor,
    mask: torch.Tensor,
    kind: Literal["k1", "k2", "k3"] = "k1",
) -> torch.Tensor:
    """KL(policy || reference)[batch, time] in nats, estimated from each sampled token; 0 where masked.

    With x = log p - log p_ref: k1 is x, k2 is x^2 / 2, k3 is exp(-x) - 1 + x, never negative (Schulman 2020), where
    -x is at most 80 in the exponential. Raises ValueError for shapes that differ, or another kind.
    """
    check_shapes(logprobs, reference_logprobs, mask)
    x = log_ratio(logprobs, reference_logprobs, mask)
    if kind == "k1":
        return x
    if kind == "k2":
        return x**2 / 2
    if kind == "k3":
        return torch.expm1((-x).clamp(max=MOST_EXPONENT)) + x
    raise ValueError(f"kind={kind!r}; needed: k1, k2 or k3")


@torch.no_grad()
def kl_rewards(
    logprobs: torch.Tensor,
    reference_logprobs: torch.Tensor,
    scores: torch.Tensor,
    mask: torch.Tensor,
    kl_coef: float,
    kind: Literal["k1", "k2", "k3"] = "k1",
) -> torch.Tensor:
    """Rewards[batch, time]: -kl_coef times the KL of a token, and the score (Ziegler et al. 2019, eq. 2).

    Scores are [batch], added to the last token of each row's mask, or dense, [batch, time]. A row without tokens has no
    reward. Raises ValueError for shapes that do not fit.
    """
    check_shapes(logprobs, reference_logprobs, mask)
    batch, time = mask.shape
    if scores.shape not in ((batch,), (batch, time)):
        raise ValueError(f"scores of shape {list(scores.shape)}; needed: [{batch}], or dense [{batch}, {time}]")
    if scores.dim() == 1:
        last = mask.bool() & (mask.bool().flip(1).cumsum(1).flip(1) == 1)  # a mask may have gaps: several turns
        earned = masked(scores[:, None].expand(batch, time), last)
    else:
        earned = masked(scores, mask)
    return earned - kl_coef * kl_estimates(logprobs, reference_logprobs, mask, kind)


class AdaptiveKL:
    """The coefficient of the KL penalty: fixed, or adapted so that the KL approaches a target (Ziegler et al. 2019,
    section 2.2).

    `target` has the unit of `update`'s KL, usually nats per reply; None keeps `init`. `horizon` is above MOST_CHANGE
    times the samples of an update (ppo/check.py), so that the coefficient stays positive.
    """

    def __init__(self, init: float, target: float | None = None, horizon: float = 10000) -> None:
        self.value, self.target, self.horizon = init, target, horizon

    def update(self, kl: float, n: int) -> None:
        """value *= 1 + clip(kl / target - 1, +-.2) n / horizon, after n samples with that mean KL.

        Raises ValueError for NaN.
        """
        if self.target is None:
            return
        if math.isnan(kl):
            raise ValueError(f"a KL of {kl}; needed: a number")
        error = max(-MOST_CHANGE, min(kl / self.target - 1, MOST_CHANGE))
        change = 1 + error * n / self.horizon
        assert change > 0, f"horizon {self.horizon} for {n} samples"
        self.value *= change

    def state_dict(self) -> dict[str, float]:
        """Plain numbers, for a checkpoint; target and horizon are the config's."""
        return {"value": self.value}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restores the state."""
        self.value = float(state["value"])
