"""Intervals and tests: by hand, beside scipy and scikit-learn, and where a sample cannot say anything."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from lmgym.errors import InputError
from lmgym.sample_sizes import detectable, largest_spread, units_needed
from lmgym.statistics import (
    NOTHING,
    Estimate,
    Ratio,
    auc,
    compare,
    from_moments,
    holm,
    jackknife,
    mean,
    notes,
    optimism,
    paired_difference,
    share,
    sign_flips,
)


def shares(flags: list[int]) -> Ratio:
    return Ratio(np.array(flags, dtype=np.float64), np.ones(len(flags)))


def ends(found: Estimate) -> tuple[float, float]:
    assert found.low is not None
    assert found.high is not None
    return found.low, found.high


def test_a_share_of_independent_rows_has_wilsons_interval() -> None:
    for right, n in ((0, 5), (3, 7), (6, 6), (50, 100)):
        found = share([1] * right + [0] * (n - right))
        expected = stats.binomtest(right, n).proportion_ci(0.95, method="wilson")
        assert ends(found) == pytest.approx((expected.low, expected.high))
        assert (found.value, found.units, found.rows) == (right / n, n, n)


def test_six_right_pairs_leave_room_for_a_scorer_that_errs() -> None:
    low, high = ends(share([1] * 6))
    assert (low, high) == (pytest.approx(0.610, abs=1e-3), 1)
    # the same of six prompts with two pairs each: the number of prompts counts
    assert ends(share([1] * 12, np.repeat(np.arange(6), 2))) == pytest.approx((low, high))


def test_one_unit_and_equal_values_have_no_interval_and_say_so_once() -> None:
    alone, equal = share([1, 1, 0], ["q"] * 3), mean([2.5, 2.5, 2.5])
    assert (alone.low, alone.high, alone.units, alone.rows) == (None, None, 1, 3)
    assert f"{alone:.3f}" == "0.667 (–)"
    assert f"{equal:+.1f}" == "+2.5 (–)"
    assert notes([alone, alone, equal, share([1] * 6)], "question") == [
        "–: one question is too few for a 95% interval",
        "–: all values are equal: no interval",
        "Intervals rest on only 6 questions; 30 or more are needed to rely on a figure",
    ]
    assert mean([]) == NOTHING
    assert f"{NOTHING:.3f}" == "–"
    assert notes([share([1, 0] * 20)], "question") == []
    [few] = notes([share([1, 0] * 20), share([1] * 6)], "question")
    assert few.startswith("Intervals rest on as few as 6 questions; ")


def test_the_mean_of_independent_values_has_students_interval() -> None:
    values = np.random.default_rng(0).uniform(0, 1, 20)  # flatter than a normal: all 19 degrees of freedom
    found = mean(values)
    expected = stats.ttest_1samp(values, 0).confidence_interval()
    assert ends(found) == pytest.approx((expected.low, expected.high))
    assert ends(from_moments(float(values.mean()), float(values.std()), 20)) == pytest.approx(ends(found))


def test_rows_of_a_unit_that_move_together_count_as_one() -> None:
    values = np.random.default_rng(5).random(100) < 0.7
    many, one = share(np.repeat(values, 9), np.repeat(np.arange(100), 9)), share(values)
    assert (many.value, many.units, many.rows) == (one.value, 100, 900)
    widths = [high - low for low, high in map(ends, (many, one))]
    assert widths[0] == pytest.approx(widths[1], rel=0.05)


def test_an_outlier_that_has_all_of_the_variance_leaves_few_degrees_of_freedom() -> None:
    values = np.zeros(100)
    values[0] = 1.0
    low, high = ends(mean(values))
    # one unit carries the variance: 2 degrees of freedom, quantile 4.3, and not 99 with 1.98
    assert (high - low) / 2 == pytest.approx(4.24 * 0.01, rel=0.02)


def test_the_interval_of_a_bounded_mean_stays_within_its_bounds_and_has_a_width_where_all_are_equal() -> None:
    low, high = ends(mean([0.5, 0.49, 0.5, 0.5, 0.4], bounds=(-0.5, 0.5)))
    assert -0.5 <= low < high <= 0.5
    # all 40 are .059: at most 3.84 / 43.84 of others are likely, which lie anywhere in the bounds
    low, high = ends(mean([0.059] * 40, bounds=(-0.5, 0.5)))
    unseen = 3.8415 / 43.8415
    assert (low, high) == pytest.approx((0.059 - unseen * 0.559, 0.059 + unseen * 0.441), abs=1e-4)


def test_sign_flips_are_all_of_them_for_few_units() -> None:
    values = np.array([0.3, -0.1, 0.4, 0.2, 0.5, -0.2, 0.1, 0.3])
    flips = [abs(np.dot(signs, values)) for signs in itertools.product((-1, 1), repeat=8)]
    assert sign_flips(values) == pytest.approx(np.mean(np.array(flips) >= abs(values.sum()) - 1e-12))
    assert sign_flips([0.059] * 2) == 0.5
    assert sign_flips([0.059] * 10) == 2**-9
    assert sign_flips(np.zeros(5)) == 1
    assert sign_flips(np.repeat(values, 3), np.repeat(np.arange(8), 3)) == pytest.approx(sign_flips(values))


def test_many_random_sign_flips_agree_with_the_t_test() -> None:
    values = np.random.default_rng(1).normal(0.2, 1, 100)
    assert sign_flips(values) == pytest.approx(stats.ttest_1samp(values, 0).pvalue, abs=0.01)


def test_a_paired_difference_is_that_of_the_rows() -> None:
    first, second = [1, 0, 1, 0, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0, 1, 1]
    found, p = paired_difference(first, second, bounds=(-1, 1))
    assert found.value == 0.5
    assert p == 2 * 0.5**4  # four differ, all in one direction
    assert -0.1 < ends(found)[0] < 0.5 < ends(found)[1] < 1
    same, p = paired_difference(first, first, bounds=(-1, 1))
    assert (same.value, p) == (0, 1)
    assert ends(same)[0] < 0 < ends(same)[1]


def test_holms_adjustment_by_hand() -> None:
    # sorted .01, .02, .04 times 3, 2, 1: .03, .04, .04
    assert holm([0.02, 0.04, 0.01]) == pytest.approx([0.04, 0.04, 0.03])
    assert holm([0.5, 0.6]) == [1.0, 1.0]


def test_the_auc_is_scikit_learns_with_an_interval_that_widens_with_the_rows_of_a_user() -> None:
    rng = np.random.default_rng(2)
    truth = rng.random(300) < 0.4
    scores = np.round(rng.normal(truth, 1), 1)  # with ties
    by_row = auc(scores, truth)
    assert by_row.value == pytest.approx(roc_auc_score(truth, scores))
    again = auc(np.repeat(scores, 4), np.repeat(truth, 4), np.repeat(np.arange(300), 4))
    assert (again.value, again.units, again.rows) == (pytest.approx(by_row.value), 300, 1200)
    assert ends(again) == pytest.approx(ends(by_row), abs=0.003)
    assert auc(scores, np.ones(300)) == NOTHING
    low, high = ends(auc(np.arange(12), np.arange(12) > 5))
    assert 0.4 < low < high == 1


def test_the_standard_error_of_an_auc_is_delongs() -> None:
    rng = np.random.default_rng(3)
    up, down = rng.normal(0.8, 1, 80), rng.normal(0, 1, 120)
    wins = (up[:, None] > down).astype(float)
    error = math.sqrt(wins.mean(1).var(ddof=1) / 80 + wins.mean(0).var(ddof=1) / 120)
    low, high = ends(auc(np.r_[up, down], np.r_[np.ones(80), np.zeros(120)]))
    assert (high - low) / 2 == pytest.approx(1.98 * error, rel=0.05)


def test_the_jackknife_of_a_mean_is_the_means_own_interval() -> None:
    values = np.random.default_rng(4).uniform(0, 1, 15)
    without = (values.sum() - values) / 14
    assert ends(jackknife(float(values.mean()), without, 15)) == pytest.approx(ends(mean(values)))


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


def test_without_variance_equal_figures_do_not_differ_and_others_cannot_be_tested() -> None:
    assert compare(shares([1, 1, 1]), shares([1, 1, 1])).p_value == 1.0
    found = compare(shares([0, 0, 0]), shares([1, 1, 1]))
    assert found.difference == 1
    assert all(math.isnan(value) for value in (found.low, found.high, found.p_value))
    assert compare(shares([0, 1, 0]), shares([0, 1, 0]), paired=True).p_value == 1.0


def test_differences_that_are_equal_but_for_rounding_cannot_be_tested() -> None:
    a, b = np.array([0.1, 0.2, 0.3]), np.array([0.4, 0.5, 0.6])
    assert 0 < (b - a).std() < 1e-15
    assert math.isnan(compare(Ratio(a, np.ones(3)), Ratio(b, np.ones(3)), paired=True).p_value)


def test_an_interval_ends_where_the_figure_cannot_lie() -> None:
    found = mean([0.99, 1.0, 0.98])
    assert found.within((0, 1)) == replace(found, high=1)
    assert found.within((0.995, 2)).low == found.value  # a value outside of its bounds stays in its interval
    assert mean([0.5]).within((0, 1)) == mean([0.5])


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


def test_units_needed_is_the_textbooks() -> None:
    # half a standard deviation at 80%: (1.95996 + .84162)^2 * 2 / .25 = 62.79 (Cohen 1988 has 63 to 64)
    assert units_needed(0.5, np.sqrt(2), power=0.8) == 63
    # a 5% change of a mean of 6.7 with standard deviation 3.25 in each group: 10.507 * 2 * 10.5625 / .1122
    assert units_needed(0.335, np.sqrt(2) * 3.25) == 1978
    assert units_needed(-0.335, np.sqrt(2) * 3.25) == 1978
    assert units_needed(100.0, 1.0) == 2
    for bad in ({"difference": 0.0}, {"spread": np.nan}, {"power": 1.0}, {"alpha": 0.0}):
        with pytest.raises(InputError, match="needed: "):
            units_needed(**{"difference": 1.0, "spread": 1.0, **bad})


def test_the_detectable_difference_is_the_one_that_as_many_units_are_needed_for() -> None:
    assert units_needed(1.0001 * detectable(3.0, 250), 3.0) == 250
    # (n - 1) s^2 / chi2(.1, 9) with 10 units: 9 / 4.168 = 2.159
    assert largest_spread(1.0, 10) == pytest.approx(1.4694, abs=1e-3)


@pytest.mark.parametrize(("looks", "units", "highest"), [(2, 16, 0.5642), (9, 17, 1.4850), (40, 64, 2.1608)])
def test_the_optimism_of_equal_looks_is_the_mean_of_the_highest_of_their_means(looks, units, highest) -> None:
    rng = np.random.default_rng(looks)
    # `highest`: of so many standard normal numbers (Tippett 1925); a prompt's own part is in all of its scores
    own = 3 * rng.standard_normal((60, 1, units))
    found = [optimism(values) for values in own + rng.standard_normal((60, looks, units))]
    assert np.mean(found) == pytest.approx(highest / np.sqrt(units), rel=0.12)


def test_a_look_that_is_clearly_best_has_no_optimism_and_one_nearly_so_rather_too_much() -> None:
    rng = np.random.default_rng(1)
    noise = rng.standard_normal((200, 5, 32))
    assert np.mean([optimism(values) for values in noise + np.eye(5)[0][:, None] * 2]) == pytest.approx(0, abs=0.005)
    close = noise + np.linspace(0, 0.4, 5)[:, None]
    means = close.mean(2)
    chosen = means.argmax(1)
    true = np.mean(means[np.arange(200), chosen] - np.linspace(0, 0.4, 5)[chosen])
    assert true < np.mean([optimism(values) for values in close]) < 2 * true


def test_optimism_needs_two_looks_and_two_units_and_is_none_for_equal_values() -> None:
    assert optimism(np.zeros((1, 9))) is optimism(np.zeros((9, 1))) is None
    assert optimism(np.array([[0.0, 2.0], [1.0, 1.0]])) == pytest.approx(1 / np.sqrt(2)), "by hand: gaps of 2 and 0"
    assert optimism(np.ones((3, 8))) == 0
