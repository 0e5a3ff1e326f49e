"""The share won at equal length: by hand, beside a general optimiser, its interval, and where there is none."""

import math

import numpy as np
import pytest
from scipy import optimize, special

from lmgym.scoring.equal_length import share_at_equal_length
from lmgym.scoring.strengths import PRIOR_STD
from lmgym.statistics import NOTHING, share


def test_of_replies_that_are_longer_and_shorter_alike_it_is_the_mean_of_their_logits() -> None:
    # logit .8 = ln 4 and logit .5 = 0: their mean is ln 2, whose share is 2/3; the plain share is .65
    found = share_at_equal_length([0.8, 0.5] * 2000, [30, -30] * 2000)
    assert found.value == pytest.approx(2 / 3, abs=1e-3)


def test_exactly_the_longer_ones_win_is_no_better_and_no_effect_of_length_is_the_plain_share() -> None:
    assert share_at_equal_length([1, 0, 1, 0], [5, -5, 5, -5]).value == pytest.approx(0.5, abs=1e-9)
    assert share_at_equal_length([0.7] * 5, [9, -2, 4, -30, 0]).value == pytest.approx(0.7, abs=1e-9)
    # all are as long, as before step 1
    assert share_at_equal_length([0.5, 1, 0.25], [0, 0, 0]) == share([0.5, 1, 0.25])
    assert share_at_equal_length([1, 1, 1], [3, -4, 0]) == share([1, 1, 1])


def test_it_is_where_a_general_optimiser_puts_the_intercept() -> None:
    won, longer = np.array([0.9, 0.6, 0.2, 1.0, 0.35]), np.array([40, -3, -25, 80, 6])
    x = np.tanh(longer / math.sqrt((longer**2).mean()))

    def loss(of: np.ndarray) -> float:
        p = special.expit(of[0] + of[1] * x)
        return float(-(special.xlogy(won, p) + special.xlogy(1 - won, 1 - p)).sum() + (of[1] / PRIOR_STD) ** 2 / 2)

    best = optimize.minimize(loss, [0.0, 0.0], tol=1e-12).x[0]
    assert share_at_equal_length(won, longer).value == pytest.approx(special.expit(best), abs=1e-5)


def test_where_no_reply_is_as_short_or_as_long_there_is_none() -> None:
    for longer, word in (([1, 2], "longer"), ([-1, -2], "shorter")):
        found = share_at_equal_length([0.2, 0.9], longer)
        assert found.value is None
        assert found.reason == f"every reply is {word} than the one that it is compared with"
    assert share_at_equal_length([], []) == NOTHING


def test_of_very_unequal_lengths_the_fit_ends() -> None:
    found = share_at_equal_length([1] * 63 + [0], [1000] * 63 + [-1])
    assert found.value is not None
    assert 0 < found.value < 1
    assert found.low is not None
    assert found.low <= found.value


def test_its_interval_holds_the_share_in_about_95_of_100_samples() -> None:
    rng, held = np.random.default_rng(0), 0
    for _ in range(400):
        longer = rng.normal(20, 40, 64)
        won = rng.random(64) < special.expit(0.4 + 1.2 * np.tanh(longer / np.sqrt((longer**2).mean())))
        found = share_at_equal_length(won, longer)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= special.expit(0.4) <= found.high
    assert 0.92 <= held / 400 <= 0.98
