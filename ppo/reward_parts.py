"""Parts of a reply's reward: by functions and scorers that are normalised one by one, and a penalty of long replies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from lmgym.environments.episodes import Episode, Step


@dataclass(frozen=True)
class RewardParts:
    """Rewards of R replies by K functions and scorers."""

    rewards: torch.Tensor
    """float64 [R, K], as they were given; NaN where one gave none"""
    weights: torch.Tensor
    """float64 [K]"""

    @property
    def sums(self) -> torch.Tensor:
        """[R]: their weighted sums."""
        return self.rewards.nan_to_num(0.0) @ self.weights


def apart(episodes: Sequence[Episode], weights: Mapping[str, float], scale: float) -> tuple[RewardParts, list[Episode]]:
    """(the rewards by the names of the weights, whose sum is scaled; the episodes with all other rewards, such as those
    of their environments).
    """
    steps = [step for episode in episodes for step in episode.steps]
    rewards = [[step.scores.get(name, np.nan) for name in weights] for step in steps]
    table = torch.tensor(rewards, dtype=torch.float64).reshape(len(steps), len(weights))
    parts = RewardParts(table, torch.tensor([scale * weight for weight in weights.values()], dtype=torch.float64))
    return parts, [replace(one, steps=[_without(step, weights) for step in one.steps]) for one in episodes]


def _without(step: Step, weights: Mapping[str, float]) -> Step:
    if step.reward is None:
        return step
    total = sum(step.reward) if isinstance(step.reward, tuple) else step.reward
    ours = sum(weight * step.scores.get(name, 0.0) for name, weight in weights.items() if weight)
    return replace(step, reward=total - ours)


def overlong_share(lengths: np.ndarray, most: int, buffer: float) -> np.ndarray:
    """Each length's share of the last `buffer` of `most` tokens: 0 before, 1 at the limit (Yu et al. 2025, eq. 13)."""
    room = buffer * most
    return np.clip((lengths - (most - room)) / room, 0, 1)
