"""Coefficients of agreement by the packages that have them, each with its 95% interval over prompts.

Cohen's kappa is scikit-learn's, Fleiss' that of statsmodels, Krippendorff's alpha that of `krippendorff`. The interval
is the jackknife's: a coefficient is computed anew without each prompt, of many prompts without each of GROUPS groups.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lmgym.apps.audit.agree.levels import Levels
from lmgym.errors import InputError
from lmgym.statistics import NOTHING, Estimate, Floats, jackknife, share

GROUPS = 400  # of prompts that are left out together
MOST_RATERS = 2000  # of whom all pairs are looked at
INSTALL = "pip install 'lmgym[agree]'"
BOUNDS = (-1.0, 1.0)
UNDEFINED = "all are equal: a coefficient needs two values"
Codes = NDArray[np.int64]


@dataclass(frozen=True)
class Ratings:
    """Votes as arrays: row, rater and level of each, and the independent unit of each row."""

    rows: Codes
    raters: Codes
    levels: Codes
    units: Codes
    """[rows]"""
    of: Levels

    @property
    def counts(self) -> Floats:
        """Votes[rows, levels]."""
        found = np.zeros((len(self.units), len(self.of.names)))
        np.add.at(found, (self.rows, self.levels), 1.0)
        return found


def require_packages() -> None:
    """Raises InputError where the packages of the coefficients are not installed."""
    try:
        import krippendorff  # noqa: F401
        import statsmodels.stats.inter_rater  # noqa: F401
    except ImportError as error:
        raise InputError(f"{error.name} is not installed; needed for coefficients of agreement: {INSTALL}") from None


def over_units(
    statistic: Callable[[NDArray[np.bool_]], float | None],
    units: Codes,
    groups: int = GROUPS,
    chance: float | None = None,
) -> Estimate:
    """A statistic of a choice of rows with its interval over units[rows].

    `statistic` is None where it is not defined. `chance`: the disagreement that is expected by chance, with which a
    coefficient of 1 has a lower limit: where no row of n disagrees, up to Wilson's upper end of 0 in n may.
    """
    every = np.ones(len(units), dtype=bool)
    value = statistic(every) if len(units) else None
    if value is None:
        return replace(NOTHING, rows=len(units), reason=UNDEFINED if len(units) else NOTHING.reason)
    codes = np.unique(units, return_inverse=True)[1]
    number = int(codes.max()) + 1
    if value > 1 - 1e-9 and chance:
        unseen = share(np.zeros(number)).high
        low = None if unseen is None else max(BOUNDS[0], 1 - unseen / chance)
        return Estimate(1.0, low, None if low is None else 1.0, number, len(units), share(np.zeros(number)).reason)
    if number > groups:
        codes = np.random.default_rng(0).permutation(np.arange(number) % groups)[codes]
    without = [statistic(codes != left_out) for left_out in range(min(number, groups))] if number > 1 else [value]
    known = [other for other in without if other is not None]
    if len(known) < len(without):
        return Estimate(value, None, None, number, len(units), "one prompt has all disagreement")
    return replace(jackknife(value, known, len(units)), units=number).within(BOUNDS)


def cohen(
    first: Codes, second: Codes, units: Codes, of: Levels, weights: Floats | None = None, groups: int = GROUPS
) -> Estimate:
    """Cohen's kappa of two raters' levels[rows], each row with its weight; weighted by squares for grades."""
    counted = np.ones(len(first)) if weights is None else weights
    chance = _expected(_table(first, second, of, counted))
    return over_units(lambda kept: _cohen(first[kept], second[kept], of, counted[kept]), units, groups, chance)


def _table(first: Codes, second: Codes, of: Levels, weights: Floats) -> Floats:
    """Weights by levels of both raters."""
    levels = len(of.names)
    return np.bincount(first * levels + second, weights, levels**2).astype(np.float64).reshape(levels, levels)


def _cohen(first: Codes, second: Codes, of: Levels, weights: Floats) -> float | None:
    """None where both always say one thing."""
    from sklearn.metrics import cohen_kappa_score

    if not len(first):
        return None
    places = np.arange(len(of.names))
    cells = np.meshgrid(places, places, indexing="ij")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of 0 / 0, which is None here
        found = cohen_kappa_score(
            *(side.ravel() for side in cells),
            labels=places,
            weights="quadratic" if of.are_grades else None,
            sample_weight=_table(first, second, of, weights).ravel(),
        )
    return float(found) if np.isfinite(found) else None


def _expected(table: Floats) -> float:
    """The share of disagreement that is expected by chance from the margins of a table."""
    total = table.sum()
    return float(1 - (table.sum(0) / total) @ (table.sum(1) / total)) if total else 0.0


def fleiss(counts: Floats, units: Codes) -> tuple[Estimate, str]:
    """(Fleiss' kappa of counts[rows, levels], the reason that there is none)."""
    numbers = counts.sum(1)
    if counts.shape[1] < 2 or not len(numbers) or numbers.max() < 2:
        return NOTHING, "Fleiss' kappa needs two or more votes on each row"
    if (numbers != numbers[0]).any():
        return NOTHING, (
            f"Fleiss' kappa needs equally many votes on each row, and they are {numbers.min():.0f} to "
            f"{numbers.max():.0f}; Krippendorff's alpha does not"
        )
    shares = counts.sum(0) / counts.sum()
    return over_units(lambda kept: _fleiss(counts[kept]), units, chance=1 - float(shares @ shares)), ""


def _fleiss(counts: Floats) -> float | None:
    from statsmodels.stats.inter_rater import fleiss_kappa

    if not len(counts) or (counts.sum(0) > 0).sum() < 2:
        return None
    return float(fleiss_kappa(counts))


def krippendorff_alpha(counts: Floats, units: Codes, of: Levels) -> Estimate:
    """Krippendorff's alpha of counts[rows, levels]: ordinal for grades, else nominal; rows of one vote do not count."""
    shared = counts.sum(1) > 1
    totals = counts[shared].sum(0)
    shares = totals / max(1.0, totals.sum())
    return over_units(lambda kept: _alpha(counts[shared][kept], of), units[shared], chance=1 - float(shares @ shares))


def _alpha(counts: Floats, of: Levels) -> float | None:
    import krippendorff

    if not len(counts) or (counts.sum(0) > 0).sum() < 2:
        return None
    level: Literal["ordinal", "nominal"] = "ordinal" if of.are_grades else "nominal"
    return float(krippendorff.alpha(value_counts=counts, value_domain=of.values, level_of_measurement=level))


def mean_of_pairs(ratings: Ratings, least: int, most: int, groups: int) -> tuple[Estimate, int, int]:
    """(the mean of Cohen's kappas of two raters, pairs of raters in it, pairs that share `least` rows).

    Of more pairs than `most` so many are drawn at random; two who always say one and the same thing have no kappa.
    """
    pairs, shared = _pairs(ratings, least, most)

    def mean(kept: NDArray[np.bool_]) -> float | None:
        some = [(rows[k], a[k], b[k]) for rows, a, b in pairs if (k := kept[rows]).any()]
        found = [_cohen(a, b, ratings.of, np.ones(len(a))) for _, a, b in some]
        known = [value for value in found if value is not None]
        return float(np.mean(known)) if known else None

    if not pairs:
        return NOTHING, 0, shared
    there = np.unique(np.concatenate([rows for rows, _, _ in pairs]))

    def of_there(kept: NDArray[np.bool_]) -> float | None:
        every = np.zeros(len(ratings.units), dtype=bool)
        every[there[kept]] = True
        return mean(every)

    chance = float(np.mean([_expected(_table(a, b, ratings.of, np.ones(len(a)))) for _, a, b in pairs]))
    return over_units(of_there, ratings.units[there], groups, chance), len(pairs), shared


def _pairs(ratings: Ratings, least: int, most: int) -> tuple[list[tuple[Codes, Codes, Codes]], int]:
    """([(rows, levels of the one rater, of the other)] of at most so many pairs, the number with `least` rows)."""
    raters = np.nonzero(np.bincount(ratings.raters) >= least)[0]
    if len(raters) > MOST_RATERS:
        raters = np.sort(np.random.default_rng(0).permutation(raters)[:MOST_RATERS])
    level = np.full((len(raters), len(ratings.units)), -1)
    for place, rater in enumerate(raters):
        own = ratings.raters == rater
        level[place, ratings.rows[own]] = ratings.levels[own]
    there = (level >= 0).astype(np.float32)
    shared = np.triu(there @ there.T, 1)
    first, second = np.nonzero(shared >= least)
    order = np.sort(np.random.default_rng(0).permutation(len(first))[:most])
    found = []
    for a, b in zip(first[order], second[order], strict=True):
        rows = np.nonzero((level[a] >= 0) & (level[b] >= 0))[0]
        found.append((rows, level[a, rows], level[b, rows]))
    return found, len(first)
