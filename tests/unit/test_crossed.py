"""Means over two crossed factors: by hand, against the analysis of variance, and their coverage by simulation."""

import numpy as np
import pytest
from scipy import stats

from lmgym.crossed import crossed_mean

DRAWS = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "heavy tails": lambda rng, n: rng.standard_t(3, n),
    "skewed": lambda rng, n: 1 - rng.exponential(size=n),
}
PARTS = {"cells": (0, 0, 1), "units": (1, 0, 0.3), "kinds": (0, 1, 0.3), "all": (1, 1, 1)}


def simulated(rng, draw, units: int, kinds: int, parts, mean: float = 0.0):
    """(values, units, kinds) of two kinds for each unit, each kind as often as others but for one time."""
    drawn = [rng.permutation(kinds) for _ in range(2 * units // kinds + 1)]
    kind, unit = np.concatenate(drawn)[: 2 * units], np.repeat(np.arange(units), 2)
    of_unit, of_kind, of_cell = parts
    noise = of_unit * draw(rng, units)[unit] + of_kind * draw(rng, kinds)[kind] + of_cell * draw(rng, 2 * units)
    return mean + noise, unit, kind


def test_the_variance_by_hand() -> None:
    found = crossed_mean([1, 2, 3, 5], ["a", "a", "b", "b"], ["x", "y", "x", "y"])
    # sums of deviations by unit are -2.5 and 2.5, by kind -1.5 and 1.5, each over 4, times 2 / (2 - 1)
    of_units, of_kinds, of_cells = 2 * 2 * (2.5 / 4) ** 2, 2 * 2 * (1.5 / 4) ** 2, 8.75 / 16 * 4 / 3
    assert of_units + of_kinds - of_cells < of_units, "so that the variance is that of units"
    assert (found.of_units, found.of_kinds, found.of_cells) == pytest.approx((of_units, 0, of_cells))
    freedom = of_units**2 / (of_units**2 + of_kinds**2)
    reach = stats.t.ppf(0.975, freedom) * of_units**0.5
    assert (found.estimate.value, found.estimate.high) == pytest.approx((2.75, 2.75 + reach))
    t, cubes = 2.75 / of_units**0.5, -(2.25**3 + 0.25**3 - 0.75**3 - 1.75**3) / 4**3  # only those of cells are not 0
    skewness = cubes / of_units**1.5
    corrected = t + skewness / 6 + skewness * t**2 / 3 + skewness**2 * t**3 / 27
    assert found.p == pytest.approx(2 * stats.t.sf(corrected, freedom))


def test_a_whole_table_has_the_variance_of_the_analysis_of_variance() -> None:
    rng = np.random.default_rng(0)
    table = rng.normal(size=(60, 1)) + rng.normal(size=(1, 40)) + rng.normal(size=(60, 40))
    found = crossed_mean(table.ravel(), np.repeat(np.arange(60), 40), np.tile(np.arange(40), 60))
    rows, columns = table.mean(1), table.mean(0)
    rest = table - rows[:, None] - columns + table.mean()
    squares = 40 * rows.var(ddof=1) + 60 * columns.var(ddof=1) - np.square(rest).sum() / (59 * 39)
    assert found.of_units + found.of_kinds == pytest.approx(squares / table.size, rel=0.03)


def test_rows_of_a_cell_are_one_observation() -> None:
    once = crossed_mean([1, 2, 3, 5], [0, 0, 1, 1], [0, 1, 0, 1])
    twice = crossed_mean([0, 2, 2, 3, 5], [0, 0, 0, 1, 1], [0, 0, 1, 0, 1])
    assert (twice.p, twice.of_units) == (once.p, once.of_units)
    assert (once.estimate.rows, twice.estimate.rows) == (4, 5)


def test_too_few_levels_and_equal_values_have_no_interval() -> None:
    alone = crossed_mean([1.0, 2.0], [0, 0], [0, 1])
    assert (alone.estimate.value, alone.estimate.low, alone.p) == (1.5, None, 1.0)
    assert alone.detectable(0.05) is alone.units_needed(1.0, 0.05) is None
    equal = crossed_mean([3.0] * 10, np.arange(10) // 2, np.arange(10) % 5)
    assert (equal.estimate.low, equal.p) == (None, 2.0**-4)
    assert crossed_mean([0.0] * 10, np.arange(10) // 2, np.arange(10) % 5).p == 1
    assert crossed_mean([], [], []).estimate.value is None


def test_more_units_do_not_help_where_kinds_differ() -> None:
    rng = np.random.default_rng(1)
    kinds = crossed_mean(*simulated(rng, DRAWS["normal"], 40, 12, (0, 1, 0.1)))
    assert kinds.units_needed(0.5, 0.05) is None
    assert 12 < (kinds.kinds_needed(0.5, 0.05) or 0) < 200
    units = crossed_mean(*simulated(rng, DRAWS["normal"], 40, 12, (1, 0, 0.1)))
    assert (units.units_needed(0.3, 0.05) or 0) > 100
    assert units.kinds_needed(0.3, 0.05) is None


@pytest.mark.parametrize("parts", PARTS.values(), ids=list(PARTS))
def test_the_interval_covers_and_the_test_keeps_its_level(parts) -> None:
    covered, small = coverage("normal", 40, 16, parts, 300)
    assert 0.92 <= covered <= 0.995
    assert small <= 0.01


def coverage(kind: str, units: int, kinds: int, parts, samples: int) -> tuple[float, float]:
    """(share of intervals that hold the mean, share of p-values below .002 on the side that skewness raises)."""
    rng = np.random.default_rng([units, kinds])
    found = [crossed_mean(*simulated(rng, DRAWS[kind], units, kinds, parts)) for _ in range(samples)]
    estimates = [(one.estimate.value or 0, one.estimate.low or 0, one.estimate.high or 0) for one in found]
    covered = np.mean([low <= 0 <= high for _, low, high in estimates])
    small = np.mean([one.p < 0.002 and value > 0 for one, (value, *_) in zip(found, estimates, strict=True)])
    return float(covered), float(small)


@pytest.mark.slow
@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize(("units", "kinds"), [(12, 12), (40, 16), (200, 16)])
@pytest.mark.parametrize("parts", PARTS.values(), ids=list(PARTS))
def test_coverage_of_2000_samples(kind: str, units: int, kinds: int, parts) -> None:
    covered, small = coverage(kind, units, kinds, parts, 2000)
    print(f"{kind}, {units} units, {kinds} kinds, {parts}: {covered:.3f} covered, {small:.4f} below .002")
    assert covered >= (0.9 if kind == "skewed" else 0.935)
    assert small <= (0.012 if kind == "skewed" else 0.003)


@pytest.mark.slow
@pytest.mark.parametrize("parts", PARTS.values(), ids=list(PARTS))
def test_the_units_that_are_asked_for_find_the_mean(parts) -> None:
    rng = np.random.default_rng(5)
    found = []
    for _ in range(200):
        pilot = crossed_mean(*simulated(rng, DRAWS["normal"], 40, 16, parts))
        if units := pilot.units_needed(1.5, 0.002):
            found.append(crossed_mean(*simulated(rng, DRAWS["normal"], max(40, units), 16, parts, 1.5)).p <= 0.002)
    print(f"{parts}: {sum(found)} of {len(found)} find it; {200 - len(found)} pilots ask for more kinds")
    assert np.mean(found) >= 0.8
