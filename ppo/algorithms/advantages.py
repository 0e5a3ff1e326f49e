"""From rewards to advantages: GAE and whitening, and the methods that compare whole replies.

GAE and whitening are pure functions of padded [batch, time] tensors with a mask of the sampled tokens; results are 0
where masked, and have no gradient. They are not collective: add the results of `masked_sums` over ranks.

`rloo`, `grpo`, `dr_grpo`, `reinforce_pp`, `reinforce_pp_baseline` and `best_of_group` take rewards [n] and the number
of each one's group [n], of all ranks. A reward of NaN has failed: it counts in no mean, and its advantage is 0, as is
that of one that is alone in its group.
"""

from typing import Literal

import torch

from lmgym.scoring.moments import Moments, group_moments, moments_of
from ppo.algorithms.masking import check_shapes, check_some, masked

LEAST_VARIANCE = 1e-8
LEAST_STD = 1e-4  # added to standard deviations, as TRL does


@torch.no_grad()
def gae(
    rewards: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    gamma: float = 1.0,
    lam: float | torch.Tensor = 0.95,
    bootstrap: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns, [batch, time] each, by GAE (Schulman et al. 2015, eq. 16).

    delta = r + gamma V' - V, A = delta + gamma lam A'. Primes are the row's next unmasked token: the text between two
    of the policy's turns takes no time. `lam` may be [batch], one a row. `bootstrap[batch]` is the value of a truncated
    episode's next prompt, 0 for one that ended. Returns are these advantages, not whitened, plus values. Rewards at
    masked places are ignored. Raises ValueError for shapes that differ and an empty mask.
    """
    check_shapes(rewards, values, mask)
    check_some(mask)
    if bootstrap is not None and bootstrap.shape != mask.shape[:1]:
        raise ValueError(f"bootstrap of shape {list(bootstrap.shape)}; needed: [{len(mask)}], a value a row")
    mask, values = mask.bool(), masked(values, mask)
    rewards = masked(rewards, mask).to(values.dtype)
    carried = torch.zeros_like(values[:, 0])
    lam = torch.as_tensor(lam, dtype=carried.dtype, device=carried.device)
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
    """Values[batch, time] with mean 0 and variance 1 over the mask; with `shift_mean=False` the mean is kept.

    `moments` are those of all ranks (`moments_of` the sum of their `masked_sums`), or None for those of these values.
    Raises ValueError for shapes that differ, and for an empty mask without moments.
    """
    check_shapes(values, mask)
    mean, variance = moments_of(masked_sums(values, mask)) if moments is None else moments
    whitened = (masked(values, mask) - mean) * (variance + LEAST_VARIANCE) ** -0.5
    return masked(whitened if shift_mean else whitened + mean, mask)


@torch.no_grad()
def masked_sums(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """float64 [3]: sum, sum of squares and count of values under a mask of their shape."""
    kept = masked(values, mask).double()
    return torch.stack([kept.sum(), (kept**2).sum(), mask.bool().sum().double()])


@torch.no_grad()
def rloo(rewards: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """r less the mean of the group's others: G / (G - 1) (r - mean) (Ahmadian et al. 2024, eq. 9)."""
    count, mean, _ = group_moments(rewards, groups)
    return _kept((rewards - mean) * count / (count - 1).clamp(min=1))


@torch.no_grad()
def grpo(
    rewards: torch.Tensor, groups: torch.Tensor, scale: Literal["group", "batch", "none"] = "group"
) -> torch.Tensor:
    """(r - mean) / (std + 1e-4) of the group, std of one degree of freedom less (Shao et al. 2024, section 4.1.2).

    With `scale="batch"` the standard deviation is that of all rewards.
    """
    _, mean, std = group_moments(rewards, groups)
    if scale == "batch":
        std = group_moments(rewards, torch.zeros_like(groups))[2]
    return _kept((rewards - mean) / (std + LEAST_STD if scale != "none" else 1.0))


@torch.no_grad()
def sum_of_normalized(rewards: torch.Tensor, groups: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The weighted sum of K rewards, each normalised as in `grpo`, then less its mean and over its std + 1e-4 of all.

    Of GDPO (2026, arXiv 2601.05242), `normalize_then_sum` of TRL. Rewards [n, 1 + K] have first what is only centred in
    its group, such as penalties; NaN where one of the K gave none, and all of a reply that failed. `weights` are [K].
    """
    rest, parts = rewards[:, 0], rewards[:, 1:].unbind(1)
    total = torch.where(rest.isnan(), torch.nan, _unless_equal(dr_grpo(rest, groups), rest, groups))
    for weight, part in zip(weights.tolist(), parts, strict=True):
        if weight:
            total = total + weight * _unless_equal(grpo(part, groups), part, groups)
    return reinforce_pp(total, groups)


def _unless_equal(advantages: torch.Tensor, rewards: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """0 in groups whose rewards are all equal: their mean may be another number by rounding."""
    _, member = groups.unique(return_inverse=True)
    ends = [
        rewards.new_full([int(member.max()) + 1 if len(member) else 0], -torch.inf).scatter_reduce(
            0, member, torch.where(rewards.isnan(), -torch.inf, sign * rewards), "amax"
        )
        for sign in (1, -1)
    ]
    return torch.where((ends[0] > -ends[1])[member], advantages, 0.0)


@torch.no_grad()
def dr_grpo(rewards: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """r - mean of the group (Liu et al. 2025, section 3.2)."""
    return grpo(rewards, groups, "none")


@torch.no_grad()
def reinforce_pp(rewards: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """(r - mean) / (std + 1e-4) of all rewards, whatever their groups (Hu et al. 2025, eq. 9)."""
    return grpo(rewards, torch.zeros_like(groups))


@torch.no_grad()
def reinforce_pp_baseline(rewards: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """r - mean of the group, then to mean 0 and standard deviation 1 over all (Hu et al. 2025, section 3.2)."""
    _, mean, _ = group_moments(rewards, groups)
    return reinforce_pp(rewards - mean, groups)


@torch.no_grad()
def best_of_group(rewards: torch.Tensor, groups: torch.Tensor, percentile: float = 0.9) -> torch.Tensor:
    """n / k for the k of n rewards that are above their group's least and at or above that quantile of it, else 0.

    So the mean of a loss over all replies is its mean over the best ones (rejection-sampling fine-tuning; RAFT, Dong et
    al. 2023). A group of equal rewards has no best.
    """
    best = torch.zeros_like(rewards, dtype=torch.bool)
    for group in groups.unique():
        members = groups == group
        own = rewards[members]
        best[members] = (own >= own.nanquantile(percentile)) & (own > own.nan_to_num(nan=torch.inf).min())
    return best * (~rewards.isnan()).sum() / best.sum().clamp(min=1)


def _kept(advantages: torch.Tensor) -> torch.Tensor:
    """0 for failed rewards."""
    return torch.where(advantages.isnan(), 0.0, advantages)
