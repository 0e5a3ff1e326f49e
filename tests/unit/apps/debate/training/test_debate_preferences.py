"""Preferences by P(win), against numbers by hand."""

import math

import pytest

from lmgym.apps.debate.training.preferences import PREFERENCES


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("log_prob", 0.8**2.25 / (0.8**2.25 + 0.4**2.25)),  # 2^2.25 = 4.757: 4.757 / 5.757
        ("prob", 1 / (1 + math.exp(-5.75 * 0.4))),
        ("logit", 6 / 7),  # odds of 4 against 2/3
        ("sigmoid", 1 / (1 + math.exp(-5 * (0.916827 - 0.310026)))),  # sigmoids of 2.4 and -.8
        ("binary", 1.0),
    ],
)
def test_each_preference_is_that_of_its_formula(name, expected: float) -> None:
    assert PREFERENCES[name](0.8, 0.4) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", PREFERENCES)
def test_a_larger_gap_is_a_surer_preference_above_one_half(name) -> None:
    near, far = PREFERENCES[name](0.6, 0.5), PREFERENCES[name](1.0, 0.0)
    assert 0.5 < near <= far <= 1
