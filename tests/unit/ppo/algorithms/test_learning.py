"""A method as the loop uses it: the KL that is in its rewards, and ranks that share what they compare with."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import on_two_ranks

from lmgym.environments.episodes import Episode, Step
from lmgym.generation.protocol import Completion
from ppo.config import CriticConfig, MethodConfig, PPOConfig
from ppo.rollouts import Rollouts, gather
from ppo.setup import make_estimator

REWARDS = [1.0, -2.0, 0.5, 4.0, 0.0, 3.0]
GROUPS = [0, 0, 1, 1, 0, 1]
KINDS = {"k1": lambda x: x, "k2": lambda x: x * x / 2, "k3": lambda x: np.exp(-x) - 1 + x}


def played(numbers: list[int], config: PPOConfig) -> Rollouts:
    """Episodes of one reply each, of 1 to 6 tokens, with their numbers' rewards and groups."""

    def episode(i: int) -> Episode:
        ids = tuple(range(10, 11 + i))
        said = Completion("", "eos", ids, (-0.1,) * len(ids), len(ids))
        return Episode(i, "policy", [Step([1, 2, 3], "", said, REWARDS[i])], True, False, None, {})

    found = gather([episode(i) for i in numbers], config.reward, groups=np.array([GROUPS[i] for i in numbers]))
    tokens = len(found.scores)
    found.old_logprobs = torch.linspace(-3, -1, tokens)
    found.reference_logprobs, found.values = torch.full((tokens,), -2.0), torch.zeros(tokens)
    found.bootstrap = torch.zeros(found.episodes)
    return found


def of_method(name: str, **settings: Any) -> PPOConfig:
    return PPOConfig("x", method=MethodConfig(method=name, **settings), critic=CriticConfig(lam=0.9))  # type: ignore[arg-type]


def advantages_of(numbers: list[int], method: str) -> list[float]:
    """Of the tokens of these episodes."""
    config = of_method(method)
    rollouts = played(numbers, config)
    make_estimator(config)(rollouts, 0.0)
    return rollouts.advantages.tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["ppo", "rloo"])
def test_the_kl_in_the_rewards_is_of_the_kind_that_was_asked_for(method: str, kind: str) -> None:
    config = of_method(method, kl_in="reward", kl_estimator=kind)
    rollouts = played([0, 3], config)
    x = (rollouts.old_logprobs - rollouts.reference_logprobs).numpy()
    assert x.min() == -1.0
    wanted = -0.25 * KINDS[kind](x)
    wanted[[0, 4]] += [REWARDS[0], REWARDS[3]]  # the last token of each
    assert make_estimator(config)(rollouts, 0.25).numpy() == pytest.approx(wanted, abs=1e-6)


def part(rank: int, method: str) -> list[float]:
    """The advantages of a rank's episodes: the first two, or the other four, of groups that are split."""
    return advantages_of([[0, 1], [2, 3, 4, 5]][rank], method)


@pytest.mark.parametrize("method", ["ppo", "grpo", "reinforce_pp"])
def test_episodes_on_two_ranks_have_the_advantages_that_they_have_on_one(method: str, tmp_path: Path) -> None:
    first, second = on_two_ranks(part, tmp_path, method)
    together = advantages_of(list(range(6)), method)
    assert first + second == pytest.approx(together, abs=1e-6)
    for numbers, found in (([0, 1], first), ([2, 3, 4, 5], second)):
        assert advantages_of(numbers, method) != pytest.approx(found, abs=0.01)
