"""A broken version of PPO's loop: rollouts are changed once their advantages are known."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import ppo.setup
from ppo.rollouts import Rollouts


def break_rollouts(monkeypatch: pytest.MonkeyPatch, broken: Callable[[Rollouts], None]) -> None:
    """From here on, each iteration of a run trains on rollouts that `broken` has changed."""
    estimator = ppo.setup.advantage_estimator

    def made(*settings: Any):
        estimate = estimator(*settings)

        def advance(rollouts: Rollouts, kl_coef: float) -> torch.Tensor:
            rewards = estimate(rollouts, kl_coef)
            broken(rollouts)
            return rewards

        return advance

    monkeypatch.setattr(ppo.setup, "advantage_estimator", made)


def turn_advantages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sign of advantages is flipped."""

    def turn(rollouts: Rollouts) -> None:
        rollouts.advantages = -rollouts.advantages

    break_rollouts(monkeypatch, turn)


def shift_old_logprobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old log-probability of a token is that of the one before."""

    def shift(rollouts: Rollouts) -> None:
        rollouts.old_logprobs = rollouts.old_logprobs.roll(1)

    break_rollouts(monkeypatch, shift)
