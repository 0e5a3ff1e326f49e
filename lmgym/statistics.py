"""Every interval and test: what a sample can say, and None where it cannot.

Design decisions:
- Independent units (prompts, questions, users) are the sample, not rows: rows of one unit share its difficulty. A mean
  over rows is a ratio of sums over units, and its variance is the jackknife's over units (Miller 1974).
- Quantiles are Student's, with the degrees of freedom of the units that carry the variance: few where few units have
  most rows or all of the events. With 30 units the bootstrap covers less often.
- A mean of bounded values (shares, P, Brier scores) has Wilson's interval at its effective sample size, which never
  leaves the bounds and has a width where all values are equal. `make test-full` simulates the coverage.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy  # imports scipy.stats, half a second, where its name is first used
from numpy.typing import ArrayLike, NDArray
from scipy import special

from lmgym.errors import InputError

Floats = NDArray[np.float64]
Bounds = tuple[float, float]
ENDS = ("_low", "_high")  # of the names of metrics that are the ends of an interval
FEW = 30  # independent units: with fewer, output says how few
FLIPS = 10_000
HALVINGS = 500
TOO_FEW, EQUAL = "one independent unit is too few for an interval", "all values are equal: no interval"


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95% interval; `low` and `high` are None where there is none, for the `reason`. A format such as
    `f"{estimate:+.3f}"` applies to all three numbers: `+0.059 (+0.012 to +0.106)`; a dash stands for what is None.
    """

    value: float | None
    low: float | None
    high: float | None
    units: int
    """independent ones: prompts, questions, users"""
    rows: int
    reason: str = ""

    def __format__(self, spec: str) -> str:
        return "–" if self.value is None else f"{self.value:{spec}} ({self.interval(spec)})"

    def named(self, name: str) -> dict[str, float | None]:
        """The value by a metric's name, and the ends of its interval by that name and ENDS."""
        return dict(zip((name, *(name + end for end in ENDS)), (self.value, self.low, self.high), strict=True))

    def times(self, factor: float) -> "Estimate":
        """In other units: percent, points of Elo."""
        value, low, high = (None if x is None else factor * x for x in (self.value, self.low, self.high))
        return replace(self, value=value, low=low, high=high)

    def within(self, bounds: Bounds) -> "Estimate":
        """The part of the interval in which the figure can lie: accuracies of 5 seeds do not reach above 1."""
        if self.value is None or self.low is None or self.high is None:
            return self
        low, high = min(bounds[0], self.value), max(bounds[1], self.value)
        return replace(self, low=max(low, self.low), high=min(high, self.high))

    def interval(self, spec: str) -> str:
        """`0.012 to 0.106`, or a dash."""
        return "–" if self.low is None or self.high is None else f"{self.low:{spec}} to {self.high:{spec}}"


NOTHING = Estimate(None, None, None, 0, 0, "no values")


def notes(estimates: Iterable[Estimate], unit: str) -> list[str]:
    """Sentences to print once below these estimates: why some have no interval, and how few units there are.

    `unit` names an independent unit, such as prompt.
    """
    known = [estimate for estimate in estimates if estimate.value is not None]
    reasons = dict.fromkeys(estimate.reason for estimate in known if estimate.reason)
    found = [
        f"–: one {unit} is too few for a 95% interval" if reason == TOO_FEW else f"–: {reason}" for reason in reasons
    ]
    units = {estimate.units for estimate in known if not estimate.reason}
    if (least := min(units, default=FEW)) < FEW:
        few = f"only {least}" if len(units) == 1 else f"as few as {least}"
        found.append(f"Intervals rest on {few} {unit}s; {FEW} or more are needed to rely on a figure")
    return found


@dataclass(frozen=True)
class Ratio:
    """A figure: the sum of numerator[units] over the sum of denominator[units].

    `bounds` are those within which each unit's own ratio lies; None if there are none.
    """

    numerator: Floats
    denominator: Floats
    bounds: Bounds | None = None

    @property
    def value(self) -> float:
        """The ratio; NaN if the denominators sum to 0."""
        total = self.denominator.sum()
        return float(self.numerator.sum() / total) if total else float("nan")

    @property
    def deviations(self) -> Floats:
        """Deviation[units] that each unit causes: units - 1 times the value less the value without that unit.

        Their variance is that of the value times units. 0 for a unit that has the whole denominator.
        """
        others = self.denominator.sum() - self.denominator
        deviations = (len(others) - 1) * (self.numerator - self.value * self.denominator)
        return np.divide(deviations, others, out=np.zeros(len(others)), where=others > 0)

    @property
    def spread(self) -> float:
        """Standard deviation over units."""
        return float(self.deviations.std(ddof=1)) if len(self.numerator) > 1 else float("nan")

    @property
    def estimate(self) -> Estimate:
        """The ratio with its interval over units; its rows are the sum of the denominators."""
        units, rows = len(self.numerator), int(self.denominator.sum())
        if not np.isfinite(self.value):
            return NOTHING
        effective = _effective_number(self.denominator)
        binary = self.bounds == (0, 1) and (self.denominator == 1).all() and np.isin(self.numerator, (0, 1)).all()
        if binary and units > 1:
            return Estimate(self.value, *_wilson(self.value, units, float(special.ndtri(0.975)), (0, 1)), units, rows)
        influence = self.deviations / np.sqrt(units * max(1, units - 1))
        return _estimate(self.value, influence, effective, self.bounds, rows)


def mean(values: ArrayLike, units: ArrayLike | None = None, bounds: Bounds | None = None) -> Estimate:
    """The mean of values[rows] with its 95% interval over units[rows], such as the prompt of each; each row if None.

    None for a single unit, and for values that are all equal unless the `bounds` within which they lie are given.
    """
    given = np.asarray(values, dtype=np.float64)
    if not given.size:
        return NOTHING
    return _by_unit(given, units, bounds).estimate


def share(flags: ArrayLike, units: ArrayLike | None = None) -> Estimate:
    """The share of flags[rows] (0 to 1; a tie may be a half) with its 95% interval over units[rows].

    Wilson's (1927) where each row is a unit and is 0 or 1, else the same with the effective number of rows.
    """
    return mean(flags, units, (0, 1))


def paired_difference(
    first: ArrayLike, second: ArrayLike, units: ArrayLike | None = None, bounds: Bounds | None = None
) -> tuple[Estimate, float]:
    """The mean of second[rows] - first[rows] with its interval over units[rows], and the two-sided p of no difference.

    `bounds` are those of the differences. The p-value is `sign_flips`'.
    """
    differences = np.asarray(second, dtype=np.float64) - np.asarray(first, dtype=np.float64)
    return mean(differences, units, bounds), sign_flips(differences, units)


def sign_flips(values: ArrayLike, units: ArrayLike | None = None) -> float:
    """The two-sided p-value of a mean of 0, by flipping the signs of units (Fisher 1935).

    All flips up to 12 units, 10,000 random ones above. The least p of n units is 2^(1 - n): below 6 of them nothing is
    significant at 5%.
    """
    sums = _by_unit(np.asarray(values, dtype=np.float64), units).numerator
    if len(sums) < 2 or not np.any(sums):
        return 1.0
    tested = scipy.stats.permutation_test(
        (sums,),
        lambda drawn, axis: drawn.sum(axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=FLIPS,
        batch=max(1, 4_000_000 // len(sums)),
        rng=0,
    )
    return float(tested.pvalue)


def mean_exceeds(values: Floats, bound: float) -> Floats:
    """p-value[...] of a mean of at most the bound, one-sided, by Student's t over values[..., units].

    The degrees of freedom are those with which a variance of this kurtosis is known, as of intervals. For equal values
    above the bound it is that of all signs being equal, 2^-units; 1 for a single unit.
    """
    units = values.shape[-1]
    if units < 2:
        return np.ones(values.shape[:-1])
    means = values.mean(-1)
    squares = np.square(values - means[..., None])
    variance = squares.sum(-1)
    known = variance > 0
    safe = np.where(known, variance, 1.0)
    excess = units * np.square(squares).sum(-1) / safe**2 - 1
    freedom = np.minimum(units - 1, 2 * units / np.maximum(excess, 1e-9))
    error = np.sqrt(safe / (units - 1) / units)
    of_equal = np.where(means > bound, 0.5**units, 1.0)
    return np.where(known, special.stdtr(np.maximum(freedom, 0.1), (bound - means) / error), of_equal)


def welch_exceeds(difference: float, errors: tuple[float, float], units: tuple[int, int], bound: float) -> float:
    """The p-value of a difference of at most the bound between means of independent units, one-sided (Welch 1947), from
    the means' standard errors. 1 for fewer than 2 units, and without a variance.
    """
    total = errors[0] ** 2 + errors[1] ** 2
    if min(units) < 2 or not total > 0:
        return 1.0
    freedom = total**2 / sum(error**4 / (count - 1) for error, count in zip(errors, units, strict=True))
    return float(special.stdtr(freedom, (bound - difference) / math.sqrt(total)))


def units_to_exceed(spread: float, distance: float, level: float, power: float = 0.8) -> int:
    """The fewest units with which a mean so far above the bound is found at this one-sided level, with this power."""
    ratio = spread / max(distance, 1e-9)
    units = max(2, math.ceil((ratio * float(special.ndtri(level) + special.ndtri(1 - power))) ** 2))
    while units < (ratio * float(special.stdtrit(units - 1, level) + special.stdtrit(units - 1, 1 - power))) ** 2:
        units += 1
    return units


def optimism(values: Floats) -> float | None:
    """By how much the highest of the means of values[looks, units] exceeds the expected value of that look, on average.

    Over random halves of the units: the look that is highest on one, its mean there less that on the other (two-fold
    cross-validation, Stone 1974), divided by the root of 2, since all units choose. Right where all looks have one
    expected value, and rather too high where they do not. None for fewer than 2 looks or 2 units.
    """
    looks, units = values.shape
    half, rng = units // 2, np.random.default_rng(0)
    if looks < 2 or not half:
        return None
    drawn = rng.permuted(np.tile(np.repeat([1.0, -1.0, 0.0], [half, half, units - 2 * half]), (HALVINGS, 1)), axis=1)
    sides = np.concatenate([drawn, -drawn]).T  # [units, halvings]: 1 for the half that chooses, then each the other way
    chosen = (values @ (sides > 0)).argmax(0)
    gaps = (values @ sides)[chosen, np.arange(2 * HALVINGS)] / half
    return float(gaps.mean() / math.sqrt(2))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values (Holm 1979): those below .05 are significant while the chance of any false one is 5%."""
    order = np.argsort(p_values)
    factors = np.arange(len(order), 0, -1)
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(1, np.maximum.accumulate(np.asarray(p_values)[order] * factors))
    return adjusted.tolist()


def auc(scores: ArrayLike, positive: ArrayLike, units: ArrayLike | None = None) -> Estimate:
    """P(a positive row has the higher of scores[rows]), a tie being half, with its 95% interval over units[rows].

    Mann and Whitney (1947); the variance is that of placements summed by unit (Obuchowski 1997). NOTHING unless
    there are rows of both kinds.
    """
    values, flags = np.asarray(scores, dtype=np.float64), np.asarray(positive, dtype=bool)
    up, down = values[flags], values[~flags]
    if not (len(up) and len(down)):
        return NOTHING
    codes = _codes(units, len(values))
    ranks = scipy.stats.rankdata(values)
    above = np.empty(len(values))  # share of the rows of the other kind that a row beats, or that beat it
    above[flags] = (ranks[flags] - scipy.stats.rankdata(up)) / len(down)
    above[~flags] = 1 - (ranks[~flags] - scipy.stats.rankdata(down)) / len(up)
    value = float(above[flags].mean())
    weights = np.where(flags, 1 / len(up), 1 / len(down))
    influence = np.bincount(codes, weights * (above - value))
    kinds = [np.bincount(codes, kind, len(influence)) for kind in (flags, ~flags)]
    effective = min(_effective_number(count[count > 0]) for count in kinds)
    scale = np.sqrt(len(influence) / max(1, len(influence) - 1))
    return _estimate(value, influence * scale, effective, (0, 1), len(values))


def from_moments(value: float, deviation: float, units: int) -> Estimate:
    """The mean of so many independent values from sums over ranks; `deviation` is their standard deviation, ddof=0."""
    if units < 2 or deviation == 0:
        return Estimate(value, None, None, units, units, TOO_FEW if units < 2 else EQUAL)
    reach = float(special.stdtrit(units - 1, 0.975)) * deviation / np.sqrt(units - 1)
    return Estimate(value, float(value - reach), float(value + reach), units, units)


def jackknife(value: float, without: ArrayLike, rows: int) -> Estimate:
    """The interval of any figure from its value and those without[units] each of its independent units."""
    others = np.asarray(without, dtype=np.float64)
    influence = (others - value) * np.sqrt((len(others) - 1) / len(others))
    return _estimate(value, influence, float(len(others)), None, rows)


@dataclass(frozen=True)
class Comparison:
    """B minus A with its interval, the p-value of no difference, and the spread, for `units_needed`.

    Unpaired, `spread` is the square root of the summed variances; paired, the standard deviation of units' differences.
    """

    difference: float
    low: float
    high: float
    p_value: float
    spread: float


def compare(a: Ratio, b: Ratio, paired: bool = False, alpha: float = 0.05) -> Comparison:
    """Compares B with A by Welch's t test of units' deviations, or by a paired t test of the same units.

    Without variance there is no interval, and no p-value unless the figures are equal: NaN. Raises InputError for fewer
    than 2 units on a side, and for pairs of different lengths.
    """
    n_a, n_b = len(a.numerator), len(b.numerator)
    if min(n_a, n_b) < 2:
        raise InputError(f"{n_a} and {n_b} users: no variance to test with; needed: 2 or more with each policy")
    difference = b.value - a.value
    if paired:
        if n_a != n_b:
            raise InputError(f"pairs of {n_a} and {n_b} users; needed: the same users with both policies")
        spread = float((b.deviations - a.deviations).std(ddof=1))
        error, freedom = spread / np.sqrt(n_a), n_a - 1.0
    else:
        variance_a, variance_b = a.spread**2 / n_a, b.spread**2 / n_b
        total = variance_a + variance_b
        spread, error = float(np.hypot(a.spread, b.spread)), float(np.sqrt(total))
        # Welch-Satterthwaite
        freedom = total**2 / max(variance_a**2 / (n_a - 1) + variance_b**2 / (n_b - 1), 1e-300)
    if np.isnan(difference):
        return Comparison(math.nan, math.nan, math.nan, math.nan, spread)
    if error <= 1e-10 * max(1.0, abs(difference)):  # rounding
        return Comparison(difference, math.nan, math.nan, 1.0 if difference == 0 else math.nan, spread)
    margin = float(special.stdtrit(freedom, 1 - alpha / 2)) * error
    p_value = float(2 * special.stdtr(freedom, -abs(difference) / error))
    return Comparison(difference, difference - margin, difference + margin, p_value, spread)


def _codes(units: ArrayLike | None, rows: int) -> NDArray[np.int64]:
    if units is None:
        return np.arange(rows)
    codes = np.unique(np.asarray(units), return_inverse=True)[1]
    assert len(codes) == rows, "one unit a row"
    return codes


def _by_unit(values: Floats, units: ArrayLike | None, bounds: Bounds | None = None) -> Ratio:
    """The mean of rows as a ratio of sums and numbers of rows by unit."""
    codes = _codes(units, len(values))
    return Ratio(np.bincount(codes, values).astype(np.float64), np.bincount(codes).astype(np.float64), bounds)


def _effective_number(sizes: NDArray) -> float:
    """Number of equal units whose mean would vary as much as that of units of these sizes (Kish 1965)."""
    return float(sizes.sum() ** 2 / np.square(sizes).sum())


def _estimate(value: float, influence: Floats, effective: float, bounds: Bounds | None, rows: int) -> Estimate:
    """The interval of a value whose variance is the sum of squares of influence[units]."""
    units = len(influence)
    if units < 2:
        return Estimate(value, None, None, units, rows, TOO_FEW)
    squares = np.square(influence)
    variance = float(squares.sum())
    if variance <= 1e-20 * max(1.0, value * value):
        if bounds is None:
            return Estimate(value, None, None, units, rows, EQUAL)
        low, high = _of_equal_values(value, effective, bounds)
        return Estimate(value, low, high, units, rows)
    quantile = float(special.stdtrit(degrees_of_freedom(influence, effective), 0.975))
    if bounds is None:
        reach = quantile * np.sqrt(variance)
        return Estimate(value, float(value - reach), float(value + reach), units, rows)
    low, high = _wilson(value, (value - bounds[0]) * (bounds[1] - value) / variance, quantile, bounds)
    return Estimate(value, low, high, units, rows)


def degrees_of_freedom(influence: Floats, effective: float) -> float:
    """Degrees of freedom of the sum of squares of influence[units], not all 0: at most the effective number less 1, and
    those with which a variance of this kurtosis is known, 2 units / (kurtosis - 1); for normal ones, their number.
    """
    squares, units = np.square(influence), len(influence)
    excess = units * float(np.square(squares).sum()) / float(squares.sum()) ** 2 - 1
    return max(min(effective - 1, 2 * units / max(excess, 1e-9)), 0.1)  # below .1 a quantile is infinite in effect


def _of_equal_values(value: float, number: float, bounds: Bounds) -> tuple[float, float]:
    """The mean moved to either bound by the largest share of other values that is likely unseen among so many."""
    square = float(special.ndtri(0.975)) ** 2
    unseen = square / (number + square)  # Wilson's upper end of a share of 0
    return value - unseen * (value - bounds[0]), value + unseen * (bounds[1] - value)


def _wilson(value: float, number: float, quantile: float, bounds: Bounds) -> tuple[float, float]:
    """Wilson's interval of a mean in bounds, of so many values; it holds the mean, whatever rounding does."""
    width, square = bounds[1] - bounds[0], quantile**2
    scaled = (value - bounds[0]) / width
    middle = (scaled + square / (2 * number)) / (1 + square / number)
    half = quantile / (1 + square / number) * np.sqrt(scaled * (1 - scaled) / number + square / (4 * number**2))
    low, high = min(scaled, max(0.0, middle - half)), max(scaled, min(1.0, middle + half))
    return float(bounds[0] + width * low), float(bounds[0] + width * high)
