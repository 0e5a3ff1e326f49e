"""Rewards kept apart from what else an agent earns, and the advantages of an iteration that are made of both."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from lmgym.environments.episodes import Episode, Step
from lmgym.generation.protocol import Completion
from ppo.algorithms.advantages import sum_of_normalized
from ppo.config import MethodConfig, PPOConfig, RewardConfig, RolloutConfig
from ppo.reward_parts import apart
from ppo.rollouts import Rollouts, gather
from ppo.setup import make_estimator

WEIGHTS = {"a": 2.0, "b": 1.0, "logged": 0.0}
GROUPS = np.array([0, 0, 0, 1, 1, 1])


def step(env: float = 0.0, reason: Any = "eos", **scores: float) -> Step:
    """With the environment's reward and the weighted sum of the scores; without scores the reward failed."""
    ids = (5, 6, 7)
    reward = env + sum(WEIGHTS[name] * score for name, score in scores.items()) if scores else None
    return Step([3], "", Completion("", reason, ids, (-1.0,) * 3, 3), reward, scores)


PLAYED = [
    [step(0.5, a=1.0, b=10.0)], [step(0.1, "length", a=0.1, b=-3.0, logged=9.0)], [step(a=1.0)],
    [step()], [step(b=4.0, a=2.0)], [step(0.3, a=2.0, b=5.0)],
]  # fmt: skip


def rollouts(config: PPOConfig, played: list[list[Step]], groups: np.ndarray = GROUPS) -> Rollouts:
    episodes = [Episode(i, "policy", steps, True, False, None, {}) for i, steps in enumerate(played)]
    return gather(episodes, config.reward, groups=groups, weights=WEIGHTS)


def config(**reward: Any) -> PPOConfig:
    return PPOConfig(
        "x", rollout=RolloutConfig(num_generations=3), reward=RewardConfig(normalize="group", **reward),
        method=MethodConfig("grpo", init_kl_coef=0.0),
    )  # fmt: skip


def test_what_is_apart_and_what_is_left() -> None:
    episodes = [Episode(0, "policy", steps, True, False, None, {}) for steps in PLAYED]
    parts, left = apart(episodes, WEIGHTS, scale=0.5)
    rewards = parts.rewards.tolist()
    assert rewards[0][:2] == [1.0, 10.0]
    assert rewards[1] == [0.1, -3.0, 9.0]
    assert (rewards[2][0], math.isnan(rewards[2][1]), all(map(math.isnan, rewards[3]))) == (1.0, True, True)
    assert parts.weights.tolist() == [1.0, 0.5, 0.0]
    assert parts.sums.tolist() == pytest.approx([6.0, -1.4, 1.0, 0.0, 4.0, 4.5])
    assert [one.steps[0].reward for one in left] == pytest.approx([0.5, 0.1, 0.0, None, 0.0, 0.3])
    [plain] = apart([Episode(0, "policy", [step(a=0.1, b=0.7)], True, False, None, {})], WEIGHTS, 1.0)[1]
    assert plain.steps[0].reward == 0, "exactly"


def test_advantages_of_an_iteration_with_penalties_and_environments_by_the_formula() -> None:
    settings = config(missing_eos_penalty=0.25, scale=10.0)
    found = rollouts(settings, PLAYED)
    rewards = make_estimator(settings)(found, 0.0)
    n = math.nan
    rest = [5.0, 10 * (0.1 - 0.25), 0.0, n, 0.0, 3.0]
    parts = [[1.0, 10.0], [0.1, -3.0], [1.0, n], [n, n], [2.0, 4.0], [2.0, 5.0]]
    table = torch.tensor([[r, *two] for r, two in zip(rest, parts, strict=True)], dtype=torch.float64)
    wanted = sum_of_normalized(table, torch.from_numpy(GROUPS), torch.tensor([20.0, 10.0], dtype=torch.float64))
    assert found.advantages.view(6, 3).T.tolist() == [pytest.approx(wanted.tolist(), abs=1e-5)] * 3
    assert found.advantages[9:12].tolist() == [0.0] * 3, "it failed"
    # what is logged is the sum as it was given, less penalties
    ends = [5 + 120.0, -1.5 - 28, 20.0, 0.0, 80.0, 93.0]
    assert rewards.view(6, 3).sum(1).tolist() == pytest.approx(ends)
    assert found.has_reward.tolist() == [True, True, True, False, True, True]


def test_turns_are_compared_with_the_same_turn_by_what_follows_them() -> None:
    played = [[step(a=1.0, b=0.0), step(a=2.0)], [step(a=3.0), step(a=0.0, b=4.0)]]
    settings = config()
    groups = np.array([0, 0])
    by_turn = PPOConfig(
        "x", rollout=settings.rollout, reward=settings.reward,
        method=MethodConfig("grpo", init_kl_coef=0.0, credit="turn"),
    )  # fmt: skip
    found = rollouts(by_turn, played, groups)
    make_estimator(by_turn)(found, 0.0)
    # rows: episode 0 turn 0 and 1, episode 1 turn 0 and 1; b of (0, 1) has none, so its turn 1 has one alone
    table = torch.tensor([[0.0, 3, 0], [0, 2, math.nan], [0, 3, 4], [0, 0, 4]], dtype=torch.float64)
    weights = torch.tensor([2.0, 1.0], dtype=torch.float64)
    wanted = sum_of_normalized(table, torch.tensor([0, 1, 0, 1]), weights)
    assert found.advantages.view(4, 3)[:, 0].tolist() == pytest.approx(wanted.tolist(), abs=1e-6)
    whole = rollouts(settings, played, groups)
    make_estimator(settings)(whole, 0.0)
    totals = torch.tensor([[0.0, 3, 0], [0, 3, 4]], dtype=torch.float64)
    wanted = sum_of_normalized(totals, torch.tensor([0, 0]), weights)
    assert whole.advantages.view(2, 2, 3)[:, :, 0].T.tolist() == [pytest.approx(wanted.tolist(), abs=1e-6)] * 2
