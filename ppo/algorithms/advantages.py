"""From scores to advantages: the KL reward, GAE, whitening, running moments and the adaptive KL coefficient.

Pure functions of padded [batch, time] tensors with a mask of the tokens that the policy sampled itself; results are 0
where masked, and carry no gradient. Nothing here talks to other ranks: `masked_sums` gives what to add up over them.
"""

import math
from collections.abc import Mapping

import torch

from lmgym.errors import Bound, InputError, refuse_out_of_bounds
from lmgym.scoring.moments import Moments, moments_of
from ppo.algorithms.masking import check_shapes, check_some, log_ratio, masked

LEAST_VARIANCE = 1e-8
MOST_CHANGE = 0.2  # of the KL coefficient, in an update of n = horizon samples


@torch.no_grad()
def kl_rewards(
    logprobs: torch.Tensor,
    reference_logprobs: torch.Tensor,
    scores: torch.Tensor,
    mask: torch.Tensor,
    kl_coef: float,
) -> torch.Tensor:
    """Rewards[batch, time]: -kl_coef (log p - log p_ref) a token, and the score (Ziegler et al. 2019, eq. 2).

    Scores are [batch], and land on the last token of each row's mask, or dense, [batch, time]. A row without any token
    has no reward, whatever its score. Raises ValueError for shapes that do not fit.
    """
    check_shapes(logprobs, reference_logprobs, mask)
    batch, time = mask.shape
    if scores.shape not in ((batch,), (batch, time)):
        raise ValueError(f"scores of shape {list(scores.shape)}; needed: [{batch}], or dense [{batch}, {time}]")
    if scores.dim() == 1:
        last = mask.bool() & (mask.bool().flip(1).cumsum(1).flip(1) == 1)  # a mask may have holes: several turns
        earned = masked(scores[:, None].expand(batch, time), last)
    else:
        earned = masked(scores, mask)
    return earned - kl_coef * log_ratio(logprobs, reference_logprobs, mask)


@torch.no_grad()
def gae(
    rewards: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    gamma: float = 1.0,
    lam: float = 0.95,
    bootstrap: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns, [batch, time] each, by GAE (Schulman et al. 2015, eq. 16).

    delta = r + gamma V' - V, A = delta + gamma lam A'. Primes are the row's next unmasked token: what others say
    between two of the policy's turns takes no time. `bootstrap[batch]` is the value of what would have come after a
    truncated episode, 0 for one that ended. Returns are these advantages, not whitened, plus values. Rewards at masked
    places do not count. Raises ValueError for shapes that differ and an empty mask.
    """
    check_shapes(rewards, values, mask)
    check_some(mask)
    if bootstrap is not None and bootstrap.shape != mask.shape[:1]:
        raise ValueError(f"bootstrap of shape {list(bootstrap.shape)}; needed: [{len(mask)}], a value a row")
    mask, values = mask.bool(), masked(values, mask)
    rewards = masked(rewards, mask).to(values.dtype)
    carried = torch.zeros_like(values[:, 0])
    next_value = torch.zeros_like(carried) if bootstrap is None else bootstrap.to(carried)
    advantages = torch.empty_like(values)
    for t in reversed(range(mask.shape[1])):
        here, value = mask[:, t], values[:, t]
        delta = rewards[:, t] + gamma * next_value - value
        carried = torch.where(here, delta + gamma * lam * carried, carried)
        next_value = torch.where(here, value, next_value)
        advantages[:, t] = carried
    advantages = masked(advantages, mask)
    return advantages, advantages + values


@torch.no_grad()
def whiten(
    values: torch.Tensor, mask: torch.Tensor, shift_mean: bool = True, moments: Moments | None = None
) -> torch.Tensor:
    """Values[batch, time] with mean 0 and variance 1 over the mask; with their own mean where it is not shifted.

    `moments` are those of all ranks (`moments_of` the sum of their `masked_sums`); without, those of these values.
    Raises ValueError for shapes that differ, and for an empty mask without moments.
    """
    check_shapes(values, mask)
    mean, variance = moments_of(masked_sums(values, mask)) if moments is None else moments
    whitened = (masked(values, mask) - mean) * (variance + LEAST_VARIANCE) ** -0.5
    return masked(whitened if shift_mean else whitened + mean, mask)


@torch.no_grad()
def masked_sums(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """float64 [3]: sum, sum of squares and count of values under a mask of their shape; ranks may add theirs up."""
    kept = masked(values, mask).double()
    return torch.stack([kept.sum(), (kept**2).sum(), mask.bool().sum().double()])


class AdaptiveKL:
    """The coefficient of the KL reward: fixed, or led so that the KL nears a target (Ziegler et al. 2019, section 2.2).

    `target` is in the unit of what `update` is told, nats a reply as a rule; None keeps `init`. Raises InputError for
    numbers that cannot be.
    """

    def __init__(self, init: float, target: float | None = None, horizon: float = 10000) -> None:
        name, led, ends = "KL coefficient: ", target is None or 0 < target < math.inf, 0 < horizon < math.inf
        refuse_out_of_bounds((
            Bound(f"{name}init", init, 0 <= init < math.inf, "0 (no KL reward) or more"),
            Bound(f"{name}target", target, led, "above 0, or None for a fixed coefficient"),
            Bound(f"{name}horizon", horizon, ends, "above 0: the samples in which the KL is led back"),
        ))  # fmt: skip
        self.value, self.target, self.horizon = init, target, horizon

    def update(self, kl: float, n: int) -> None:
        """value *= 1 + clip(kl / target - 1, +-.2) n / horizon, after n samples of that mean KL.

        Raises ValueError for NaN, and InputError where so many samples would turn the coefficient's sign.
        """
        if self.target is None:
            return
        if math.isnan(kl):
            raise ValueError(f"a KL of {kl}; needed: a number")
        error = max(-MOST_CHANGE, min(kl / self.target - 1, MOST_CHANGE))
        change = 1 + error * n / self.horizon
        if change <= 0:
            raise InputError(
                f"the KL coefficient would be multiplied by {change:.2g} after {n} samples with horizon="
                f"{self.horizon:g}; needed: a horizon above {MOST_CHANGE * n:g}"
            )
        self.value *= change

    def state_dict(self) -> dict[str, float]:
        """Plain numbers, for a checkpoint; target and horizon are the config's."""
        return {"value": self.value}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Goes on from there."""
        self.value = float(state["value"])
