"""Figures of an app, their intervals, tests and numbers of users: by hand, beside scipy, and over many experiments."""

from functools import cache

import numpy as np
import pytest
from scipy import stats

from lmgym.cli.ab import _comparison
from lmgym.errors import InputError
from lmgym.world.ab_testing import (
    Ratio,
    assign_users,
    bootstrap_intervals,
    compare,
    figures,
    users_needed,
)
from lmgym.world.days import GaussianReplies, UserActivity, simulate_users
from lmgym.world.streams import draw_population
from lmgym.world.world import World

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


def test_a_ratios_spread_is_the_jackknifes_by_hand() -> None:
    ratio = Ratio(np.array([2.0, 9.0, 4.0]), np.array([1.0, 3.0, 1.0]))
    assert ratio.value == 3.0
    # without the first user 13 / 4, without the second 3, without the third 11 / 4: 2 * (3 - these)
    assert ratio.deviations == pytest.approx([-0.5, 0, 0.5])
    assert ratio.spread == pytest.approx(0.5)
    assert Ratio(np.array([2.0, 0.0]), np.array([1.0, 0.0])).deviations.tolist() == [0, 0]


def test_the_spread_is_what_ratios_of_many_samples_vary_by() -> None:
    rng = np.random.default_rng(0)
    denominator = rng.integers(1, 12, (4000, 300)).astype(float)
    numerator = rng.poisson(denominator * rng.gamma(2.0, 2.0, (4000, 300))).astype(float)
    values = numerator.sum(1) / denominator.sum(1)
    spreads = [Ratio(n, d).spread for n, d in zip(numerator[:200], denominator[:200], strict=True)]
    assert np.mean(spreads) / np.sqrt(300) == pytest.approx(values.std(), rel=0.04)


def test_two_groups_of_users_are_compared_as_scipy_does() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(5, 2, 40), rng.normal(6, 4, 25)
    ours = compare(Ratio(a, np.ones(40)), Ratio(b, np.ones(25)))
    theirs = stats.ttest_ind(b, a, equal_var=False)
    assert ours.p_value == pytest.approx(theirs.pvalue)
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs.confidence_interval()))
    assert ours.difference == pytest.approx(b.mean() - a.mean())


def test_the_same_users_twice_are_compared_as_scipy_does() -> None:
    rng = np.random.default_rng(2)
    habit = rng.normal(5, 3, 60)
    a, b = habit + rng.normal(0, 1, 60), habit + rng.normal(0.3, 1, 60)
    ours = compare(Ratio(a, np.ones(60)), Ratio(b, np.ones(60)), paired=True)
    theirs = stats.ttest_rel(b, a)
    assert ours.p_value == pytest.approx(theirs.pvalue)
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs.confidence_interval()))
    assert ours.spread < compare(Ratio(a, np.ones(60)), Ratio(b, np.ones(60))).spread / 2


def test_ten_users_give_the_test_worked_out_by_hand() -> None:
    a, b = shares([1, 0, 0, 0, 1, 0, 0, 0, 0, 0]), shares([1, 1, 0, 1, 1, 0, 0, 1, 0, 0])
    # differences: three 1, seven 0: mean .3, variance .7 / 3 = .2333, so t = .3 / sqrt(.02333) = 1.964 with 9 degrees
    found = compare(a, b, paired=True)
    assert found.difference == pytest.approx(0.3)
    assert found.spread == pytest.approx(0.48305, abs=1e-5)
    assert found.p_value == pytest.approx(0.0811, abs=1e-4)
    assert (found.low, found.high) == pytest.approx((0.3 - 0.34555, 0.3 + 0.34555), abs=1e-4)


def test_nothing_that_varies_is_no_difference_or_a_certain_one() -> None:
    assert compare(shares([1, 1, 1]), shares([1, 1, 1])).p_value == 1.0
    assert compare(shares([0, 0, 0]), shares([1, 1, 1])).p_value == 0.0
    assert compare(shares([0, 1, 0]), shares([0, 1, 0]), paired=True).p_value == 1.0


def test_too_few_users_and_pairs_of_others_are_refused() -> None:
    with pytest.raises(InputError, match="1 and 3 users: no variance"):
        compare(shares([1]), shares([1, 0, 0]))
    with pytest.raises(InputError, match="pairs of 2 and 3 users"):
        compare(shares([1, 0]), shares([1, 0, 0]), paired=True)


def test_a_figure_without_anything_to_divide_by_is_none_and_not_significant() -> None:
    none = Ratio(np.zeros(3), np.zeros(3))
    with np.errstate(invalid="ignore"):
        assert np.isnan(none.value)
        assert np.isnan(compare(none, shares([1, 0, 1])).p_value)


def test_the_bootstraps_interval_is_that_of_drawing_users_one_by_one() -> None:
    rng = np.random.default_rng(3)
    ratios = {
        "a": Ratio(rng.poisson(4, 50).astype(float), rng.integers(1, 4, 50).astype(float)),
        "b": shares(rng.integers(0, 2, 50).tolist()),
    }
    found = bootstrap_intervals(ratios, samples=20_000)
    for name, ratio in ratios.items():
        values = []
        for _ in range(20_000):
            drawn = rng.integers(50, size=50)
            values.append(ratio.numerator[drawn].sum() / ratio.denominator[drawn].sum())
        assert found[name] == pytest.approx(tuple(np.quantile(values, [0.025, 0.975])), abs=0.03)
    assert bootstrap_intervals(ratios) == bootstrap_intervals(ratios)


def test_the_bootstraps_interval_of_a_share_is_the_binomials() -> None:
    # drawn with replacement, the number of the 12 of 40 is binomial(40, .3)
    low, high = bootstrap_intervals({"a": shares([1] * 12 + [0] * 28)}, samples=50_000)["a"]
    assert (low, high) == tuple(stats.binom.ppf([0.025, 0.975], 40, 0.3) / 40)


def test_without_variance_no_number_of_users_is_given() -> None:
    some, other = shares([1, 1, 0, 0, 1, 0]), shares([1, 0, 0, 1, 1, 0])
    told = {
        name: _comparison({"x": some}, {"x": b}, paired=True)["x"] for name, b in (("same", some), ("other", other))
    }
    assert told["same"]["difference"] == told["other"]["difference"] == 0
    assert told["same"]["users_to_find_5_percent"] is None
    assert told["other"]["users_to_find_5_percent"] > 1000


def test_users_needed_is_the_textbooks() -> None:
    # half a standard deviation at 80%: (1.95996 + .84162)^2 * 2 / .25 = 62.79 (Cohen 1988 has 63 to 64)
    assert users_needed(0.5, np.sqrt(2), power=0.8) == 63
    # a 5% change of a mean of 6.7 with standard deviation 3.25 in each group: 10.507 * 2 * 10.5625 / .1122
    assert users_needed(0.335, np.sqrt(2) * 3.25) == 1978
    assert users_needed(-0.335, np.sqrt(2) * 3.25) == 1978
    assert users_needed(100.0, 1.0) == 2
    for bad in ({"difference": 0.0}, {"spread": np.nan}, {"power": 1.0}, {"alpha": 0.0}):
        with pytest.raises(InputError, match="needed: "):
            users_needed(**{"difference": 1.0, "spread": 1.0, **bad})


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


@pytest.mark.parametrize("paired", [False, True])
def test_a_planted_change_of_5_percent_is_found_with_the_users_that_a_pilot_asks_for(paired: bool) -> None:
    pilot = [figures(wordless(np.arange(2000), mean, noise, 3))[LENGTH] for noise, mean in enumerate((0.0, planted()))]
    needed = users_needed(0.05 * pilot[0].value, compare(*pilot, paired=paired).spread)
    users = np.arange(40 * needed) + 10_000
    lives = wordless(users, days=3), wordless(users + (0 if paired else len(users)), planted(), 1, 3)
    first, second = (figures(one)[LENGTH] for one in lives)
    places = [slice(test * needed, (test + 1) * needed) for test in range(40)]
    p_values = [compare(part(first, at), part(second, at), paired).p_value for at in places]
    assert np.mean(np.array(p_values) < 0.05) >= 0.8
