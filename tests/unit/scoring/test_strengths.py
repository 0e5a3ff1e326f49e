"""Strengths by the Bradley-Terry model, beside an independent optimiser, and who meets whom."""

import math
import random

import numpy as np
import pytest
from scipy.optimize import minimize

from lmgym.scoring.strengths import (
    PRIOR_STD,
    ROUND_ROBIN,
    bradley_terry,
    comparisons_of,
    next_pairs,
    rounds_of,
)


def by_hand(count: int, won: dict[tuple[int, int], float]) -> np.ndarray:
    """The mode of the posterior by a general optimiser."""

    def loss(s: np.ndarray) -> float:
        logs = sum(
            w * np.logaddexp(0, s[j] - s[i]) + (1 - w) * np.logaddexp(0, s[i] - s[j]) for (i, j), w in won.items()
        )
        return float(logs + (s**2).sum() / (2 * PRIOR_STD**2))

    return minimize(loss, np.zeros(count), tol=1e-12).x


def test_strengths_are_those_of_an_independent_optimiser() -> None:
    draw = random.Random(0)
    for count in (2, 3, 6, 11):
        pairs = [(i, j) for i in range(count) for j in range(i + 1, count) if draw.random() < 0.8]
        won = {pair: draw.choice([0.0, 0.3, 0.5, 1.0, 0.86]) for pair in pairs}
        assert bradley_terry(count, won) == pytest.approx(by_hand(count, won), abs=1e-5)


def test_two_replies_have_opposite_strengths_that_solve_the_equation() -> None:
    strength = bradley_terry(2, {(0, 1): 0.9})
    assert strength.sum() == pytest.approx(0)
    p = 1 / (1 + math.exp(strength[1] - strength[0]))
    assert 0.9 - p == pytest.approx(strength[0] / PRIOR_STD**2), "the prior's pull"


def test_ties_and_no_comparisons_are_0() -> None:
    assert bradley_terry(4, dict.fromkeys([(0, 1), (1, 2), (2, 3)], 0.5)).tolist() == [0, 0, 0, 0]
    assert bradley_terry(3, {}).tolist() == [0, 0, 0]


@pytest.mark.parametrize("count", [2, 5, 6])
def test_few_replies_meet_each_other_once(count: int) -> None:
    pairs = next_pairs([0.0] * count, set())
    assert len(pairs) == len(set(pairs)) == comparisons_of(count) == count * (count - 1) // 2
    assert rounds_of(count) == 1


@pytest.mark.parametrize("count", [7, 8, 16, 33, 40, 64])
def test_many_replies_meet_in_rounds_in_which_each_plays_once_and_no_pair_twice(count: int) -> None:
    """The better one always wins; then the ranks follow the truth closely, and the best one is found."""
    truth = list(range(count))
    random.Random(count).shuffle(truth)
    won: dict[tuple[int, int], float] = {}
    for _ in range(rounds_of(count)):
        pairs = next_pairs(bradley_terry(count, won).tolist(), won)
        assert len({i for pair in pairs for i in pair}) == 2 * (count // 2)
        assert not set(pairs) & set(won)
        won |= {(i, j): float(truth[i] > truth[j]) for i, j in pairs}
    assert len(won) == comparisons_of(count) == rounds_of(count) * (count // 2)
    strengths = bradley_terry(count, won)
    assert truth[int(strengths.argmax())] == count - 1
    assert np.corrcoef(np.argsort(np.argsort(strengths)), truth)[0, 1] > 0.85


def test_the_limit_of_the_round_robin_is_that_of_the_page() -> None:
    assert ROUND_ROBIN == 6
    assert comparisons_of(6) == 15
    assert comparisons_of(8) == 16
    assert comparisons_of(64) == 224
