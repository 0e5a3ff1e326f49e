"""The judge as one more rater: the alternative annotator test (Calderon, Reichart and Dror 2025, arXiv 2501.10970).

For each rater j, the judge f and the rater h_j are compared with the same other raters on the same rows: with I_j the
rows of rater j on which the judge has a verdict and another rater a vote, and H_i the raters of row i,

    S(f, x_i, j)   = share of the raters k of H_i without j with f(x_i) = h_k(x_i); of grades, minus the root of the
                     mean squared difference from them
    S(h_j, x_i, j) = the same of h_j(x_i)
    W^f_ij = 1 if S(f, x_i, j) >= S(h_j, x_i, j), else 0        W^h_ij = 1 if S(h_j, x_i, j) >= S(f, x_i, j), else 0
    rho^f_j = mean of W^f_ij over I_j                           rho^h_j = mean of W^h_ij over I_j
    H0_j: rho^f_j <= rho^h_j - epsilon, rejected by a paired t-test of d_ij = W^h_ij - W^f_ij against epsilon:
    t_j = (mean d_j - epsilon) / (s_j / sqrt n_j), one-sided, where small t speaks for the judge
    winning rate omega = share of the raters whose H0_j is rejected, with the false discovery rate at .05 by Benjamini
    and Yekutieli (2001); the judge passes with omega >= .5
    average advantage probability rho = mean of rho^f_j over raters

Where several rows share a prompt, the variance of mean d_j is that over prompts; of one row a prompt it is the paper's.
"""

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import special

from lmgym.apps.audit.agree.coefficients import Codes, Ratings
from lmgym.crossed import crossed_mean
from lmgym.statistics import NOTHING, Estimate, Floats, Ratio, from_moments, share

LEAST_ROWS = 30  # of a rater, below which the paper has no t-test
LEAST_RATERS = 3  # below which it does not advise the test
LEVEL = 0.05
PASSES = 0.5
DRAWS = 2000


@dataclass(frozen=True)
class Against:
    """The judge against one rater."""

    rater: int
    rows: int
    prompts: int
    judge: float
    """rho^f: share of rows on which the judge is as near to the other raters, or nearer"""
    own: float
    """rho^h: the same of the rater"""
    p: float
    adjusted: float = 1.0

    @property
    def wins(self) -> bool:
        """True if the judge may take the rater's place."""
        return self.adjusted < LEVEL


@dataclass(frozen=True)
class AlternativeAnnotator:
    """The test over all raters with LEAST_ROWS rows."""

    epsilon: float
    raters: tuple[Against, ...]
    left_out: int
    """raters with fewer rows"""
    winning_rate: Estimate
    advantage: Estimate
    """over raters and prompts"""

    @property
    def passes(self) -> bool | None:
        """None without LEAST_RATERS raters."""
        value = self.winning_rate.value
        return None if value is None or len(self.raters) < LEAST_RATERS else value >= PASSES


def comparisons(ratings: Ratings, judge: Codes) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """(W^f, W^h, whether the vote counts) of each vote; `judge` has the level of each row, -1 without a verdict."""
    rows, levels, counts = ratings.rows, ratings.levels, ratings.counts
    others = counts[rows].copy()
    others[np.arange(len(rows)), levels] -= 1
    number = others.sum(1)
    counted = (number > 0) & (judge[rows] >= 0)
    scores = [_score(others, number, said, ratings) for said in (np.maximum(judge[rows], 0), levels)]
    of_judge, own = (np.round(score, 12) for score in scores)
    return (of_judge >= own).astype(float), (own >= of_judge).astype(float), counted


def _score(others: Floats, number: Floats, said: Codes, ratings: Ratings) -> Floats:
    """S of each vote: how near a level is to the other raters' votes on its row."""
    divisor = np.maximum(number, 1)
    if not ratings.of.are_grades:
        return others[np.arange(len(said)), said] / divisor
    values = np.asarray(ratings.of.values)
    squares = np.square(values[None, :] - values[said][:, None])
    return -np.sqrt((others * squares).sum(1) / divisor)


def alternative_annotator(ratings: Ratings, judge: Codes, epsilon: float) -> AlternativeAnnotator:
    """The test of the judge's levels[rows], -1 without a verdict, against all raters with LEAST_ROWS rows."""
    judges, owns, counted = comparisons(ratings, judge)
    number = int(ratings.raters.max()) + 1 if len(ratings.raters) else 0
    rows_of = np.bincount(ratings.raters[counted], minlength=number)
    tested = np.nonzero(rows_of >= LEAST_ROWS)[0]
    left_out = int(((rows_of < LEAST_ROWS) & (np.bincount(ratings.raters, minlength=number) > 0)).sum())
    if not len(tested):
        return AlternativeAnnotator(epsilon, (), left_out, NOTHING, NOTHING)
    units = np.unique(ratings.units, return_inverse=True)[1][ratings.rows]
    kept = counted & np.isin(ratings.raters, tested)
    sums = _sums(ratings.raters[kept], units[kept], tested, judges[kept], owns[kept])
    found = [_against(sums, place, int(rater), epsilon) for place, rater in enumerate(tested)]
    adjusted = scipy.stats.false_discovery_control([one.p for one in found], method="by")
    raters = tuple(
        Against(one.rater, one.rows, one.prompts, one.judge, one.own, one.p, float(p))
        for one, p in zip(found, adjusted, strict=True)
    )
    weights = 1 / rows_of[ratings.raters[kept]]
    advantage = crossed_mean(judges[kept], units[kept], ratings.raters[kept], weights).estimate.within((0, 1))
    if advantage.low is None and len(tested) >= LEAST_RATERS and advantage.value in (0.0, 1.0):
        advantage = share(np.full(len(tested), advantage.value))  # Wilson's over raters, where all are equal
    return AlternativeAnnotator(epsilon, raters, left_out, _winning_rate(sums, raters, epsilon), advantage)


@dataclass(frozen=True)
class _Sums:
    """Sums[raters, units] over the rows of each rater: their number, of W^f, and of d."""

    number: Floats
    judge: Floats
    difference: Floats


def _sums(raters: Codes, units: Codes, tested: Codes, judges: Floats, owns: Floats) -> _Sums:
    places = np.searchsorted(tested, raters)
    codes = np.unique(units, return_inverse=True)[1]
    shape = len(tested), int(codes.max()) + 1

    def summed(values: Floats) -> Floats:
        found = np.zeros(shape)
        np.add.at(found, (places, codes), values)
        return found

    return _Sums(summed(np.ones(len(judges))), summed(judges), summed(owns - judges))


def _against(sums: _Sums, place: int, rater: int, epsilon: float) -> Against:
    there = sums.number[place] > 0
    number, judge, difference = (of[place, there] for of in (sums.number, sums.judge, sums.difference))
    rows = number.sum()
    mean_judge, mean = judge.sum() / rows, Ratio(difference, number)
    own = mean_judge + mean.value
    error = mean.spread / np.sqrt(len(number)) if len(number) > 1 else np.nan
    return Against(
        rater, int(rows), len(number), float(mean_judge), float(own), _p(mean.value, error, len(number), epsilon)
    )


def _p(mean: float, error: float, units: int, epsilon: float) -> float:
    """One-sided; of equal differences that of all signs being equal, and 1 for a single unit."""
    if units < 2 or not np.isfinite(error):
        return 1.0
    if error < 1e-12:
        return 0.5**units if mean < epsilon else 1.0
    return float(special.stdtr(units - 1, (mean - epsilon) / error))


def _winning_rate(sums: _Sums, raters: tuple[Against, ...], epsilon: float) -> Estimate:
    """The winning rate with Student's interval, whose variance is that of DRAWS bootstrap samples of raters and of
    prompts; where all raters win, or none, Wilson's over raters; without one for fewer than LEAST_RATERS raters.

    Of the samples only the spread is used: a test of resampled rows rejects more often than one of new rows.
    """
    wins = np.array([one.wins for one in raters], dtype=float)
    value, (count, units) = float(wins.mean()), sums.number.shape
    if count < LEAST_RATERS or units < 2:
        return Estimate(value, None, None, count, count, f"fewer than {LEAST_RATERS} raters: no interval")
    if value in (0.0, 1.0):
        return share(wins)
    rng = np.random.default_rng(0)
    rates = []
    for _ in range(DRAWS // 100):
        weights = rng.multinomial(units, np.full(units, 1 / units), size=100).astype(float)
        p = _resampled_p(sums, weights, epsilon)
        drawn = np.take_along_axis(p, rng.integers(count, size=p.shape), axis=1)
        rates.append((scipy.stats.false_discovery_control(drawn, axis=1, method="by") < LEVEL).mean(1))
    return from_moments(value, float(np.std(rates)) * np.sqrt(count - 1), count).within((0, 1))


def _resampled_p(sums: _Sums, weights: Floats, epsilon: float) -> Floats:
    """p[draws, raters] where each unit counts weights[draws, units] times."""
    number = weights @ sums.number.T
    mean = (weights @ sums.difference.T) / np.maximum(number, 1)
    squares = (
        weights @ np.square(sums.difference).T
        - 2 * mean * (weights @ (sums.difference * sums.number).T)
        + mean**2 * (weights @ np.square(sums.number).T)
    )
    units = weights @ (sums.number > 0).T
    error = np.sqrt(np.maximum(squares, 0) * units / np.maximum(units - 1, 1)) / np.maximum(number, 1)
    flat = error < 1e-9
    with np.errstate(divide="ignore", invalid="ignore"):
        p = special.stdtr(np.maximum(units - 1, 1), (mean - epsilon) / error)
    p = np.where(flat, np.where(mean < epsilon, 0.5**units, 1.0), p)
    return np.where(units < 2, 1.0, p)
