"""Figures of an app by hand, and their tests and numbers of users over many experiments."""

from functools import cache

import numpy as np
import pytest
from app_tests import GaussianReplies

from lmgym.apps.world.ab import _comparison
from lmgym.apps.world.ab_testing import assign_users, figures
from lmgym.apps.world.days import UserActivity, simulate_users
from lmgym.apps.world.streams import draw_population
from lmgym.apps.world.world import World
from lmgym.errors import InputError
from lmgym.sample_sizes import units_needed
from lmgym.statistics import Ratio, compare

WORLD = World(0)
LENGTH = "conversation length"


def shares(flags: list[int]) -> Ratio:
    return Ratio(np.array(flags, dtype=np.float64), np.ones(len(flags)))


def test_four_users_give_the_figures_worked_out_by_hand() -> None:
    messages = np.zeros((4, 8), dtype=np.int64)
    messages[:, 0] = [3, 1, 5, 2]
    messages[0, 1], messages[0, 7], messages[2, 3], messages[3, 1] = 4, 1, 6, 2
    found = figures(UserActivity(messages, replies=np.array([10, 2, 12, 6]), retries=np.array([1, 1, 0, 4])))
    assert {name: ratio.value for name, ratio in found.items()} == {
        "conversation length": 24 / 8,
        "retry rate": 6 / 30,
        "retention day 1": 0.5,
        "retention day 3": 0.25,
        "retention day 7": 0.25,  # and no day 30: it was not lived
    }


def test_without_variance_no_number_of_users_is_given() -> None:
    some, other = shares([1, 1, 0, 0, 1, 0]), shares([1, 0, 0, 1, 1, 0])
    told = {
        name: _comparison({"x": some}, {"x": b}, paired=True)["x"] for name, b in (("same", some), ("other", other))
    }
    assert told["same"]["difference"] == told["other"]["difference"] == 0
    assert told["same"]["users_to_find_5_percent"] is None
    assert told["other"]["users_to_find_5_percent"] > 1000


def test_users_are_assigned_evenly_at_random_and_each_once() -> None:
    groups = assign_users(1001, 3, seed=0)
    assert sorted(map(len, groups)) == [333, 334, 334]
    assert sorted(np.concatenate(groups).tolist()) == list(range(1001))
    assert all((np.diff(group) > 0).all() for group in groups)
    assert abs(groups[0].mean() - 500) < 50
    assert (groups[0] == assign_users(1001, 3, seed=0)[0]).all()
    assert (groups[0] != assign_users(1001, 3, seed=1)[0]).any()
    with pytest.raises(InputError, match="3 users for 2 policies; needed: 2 or more with each, so 4 in all"):
        assign_users(3, 2, seed=0)


def wordless(users: np.ndarray, mean: float = 0.0, noise: int = 0, days: int = 8) -> UserActivity:
    population = draw_population(WORLD, users, 0)
    return simulate_users(population, days, GaussianReplies(population, mean, 1.0, noise), WORLD.noise)


def part(ratio: Ratio, users: slice) -> Ratio:
    return Ratio(ratio.numerator[users], ratio.denominator[users])


@pytest.mark.parametrize("paired", [False, True])
def test_policies_that_do_not_differ_are_told_apart_in_one_of_twenty_experiments(paired: bool) -> None:
    """200 A/A tests of users who share nothing: each user's chance is their own, so it is as good as 200 seeds."""
    users = 100
    first = figures(wordless(np.arange(200 * users)))
    other = np.arange(200 * users) + (0 if paired else 200 * users)
    second = figures(wordless(other, noise=1))
    for name in first:
        places = [slice(test * users, (test + 1) * users) for test in range(200)]
        p_values = [compare(part(first[name], at), part(second[name], at), paired).p_value for at in places]
        assert 0.015 <= np.mean(np.array(p_values) < 0.05) <= 0.10, name


@cache
def planted() -> float:
    """The increase in utility that makes conversations of three days 5% longer, with 60,000 users."""
    many = np.arange(60_000) + 10**7
    first, second = (figures(wordless(many, mean, noise, 3))[LENGTH].value for noise, mean in enumerate((0.0, 0.08)))
    return 0.08 * 0.05 / (second / first - 1)


@pytest.mark.slow  # a simulation of power, for statistics that few changes touch
@pytest.mark.parametrize("paired", [False, True])
def test_a_planted_change_of_5_percent_is_found_with_the_users_that_a_pilot_asks_for(paired: bool) -> None:
    pilot = [figures(wordless(np.arange(2000), mean, noise, 3))[LENGTH] for noise, mean in enumerate((0.0, planted()))]
    needed = units_needed(0.05 * pilot[0].value, compare(*pilot, paired=paired).spread)
    users = np.arange(40 * needed) + 10_000
    lives = wordless(users, days=3), wordless(users + (0 if paired else len(users)), planted(), 1, 3)
    first, second = (figures(one)[LENGTH] for one in lives)
    places = [slice(test * needed, (test + 1) * needed) for test in range(40)]
    p_values = [compare(part(first, at), part(second, at), paired).p_value for at in places]
    assert np.mean(np.array(p_values) < 0.05) >= 0.8
