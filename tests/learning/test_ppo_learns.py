"""PPO learns what it is rewarded for, and versions of it with a known mistake do not: the same bar for all."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import outside
import pytest
import torch
from broken_rollouts import shift_old_logprobs, turn_advantages

import ppo.train as loop
from lmgym.config import RunConfig
from ppo.config import PPOConfig
from ppo.experiments.randomwalks import CONFIG
from ppo.monitoring import safeguards
from ppo.task_setups import random_walks

UPDATES = 24
SMALL = replace(CONFIG, optimizer=replace(CONFIG.optimizer, learning_rate=1e-3))
"""the experiment for a smaller model, which takes larger steps"""
BAR = 0.72  # seeds 11 to 13: .84 to .87; broken: .00, .02 to .07 and .34 to .49


def optimality(start: Path, folder: Path, updates: int = UPDATES, seed: int = 11, given: PPOConfig = SMALL) -> float:
    """Of 1,000 sampled walks after so many updates of the experiment."""
    config = replace(
        given,
        policy=replace(given.policy, model=str(start)),
        optimizer=replace(given.optimizer, max_updates=updates, seed=seed, schedule="constant_with_warmup"),
        run=RunConfig(str(folder), tracking="none", eval_updates=updates, save_updates=-1),
    )
    loop.train(config, random_walks)
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["metrics/optimality"]


def score_the_first_token(monkeypatch) -> None:
    """A reply's score lands on its first token, and nobody looks."""
    gather = loop.gather

    def misplaced(*given):
        rollouts = gather(*given)
        scores = torch.zeros_like(rollouts.scores)
        scores[rollouts.row_starts[:-1]] = rollouts.scores[rollouts.row_starts[1:] - 1]
        rollouts.scores = scores
        return rollouts

    monkeypatch.setattr(loop, "gather", misplaced)
    monkeypatch.setattr(safeguards, "check_first_rollouts", lambda *given: None)


def shift_unseen(monkeypatch) -> None:
    """The old log-probability of a token is that of the one before, and nobody looks (test_ppo_ends.py)."""
    shift_old_logprobs(monkeypatch)
    monkeypatch.setattr(safeguards, "check_ratio", lambda *given: None)


def test_random_walks_become_short(small_start: Path, tmp_path: Path) -> None:
    assert optimality(small_start, tmp_path) > BAR
    assert outside.length_of_walks(tmp_path / "model") < outside.length_of_walks(small_start) - 1


@pytest.mark.parametrize(
    "broken",
    [turn_advantages, *(pytest.param(one, marks=pytest.mark.slow) for one in (score_the_first_token, shift_unseen))],
)
def test_a_broken_version_misses_the_bar(broken: Callable, small_start: Path, monkeypatch, tmp_path: Path) -> None:
    broken(monkeypatch)
    assert optimality(small_start, tmp_path) < BAR - 0.1
