"""Means over two crossed random factors, such as prompts and wordings, of which few combinations are observed.

Design decisions:
- The variance of the mean is that of both clusterings less that of cells (Cameron, Gelbach and Miller 2011, "Robust
  inference with multiway clustering"), and at least that of either: the difference may fall below it by chance.
- Quantiles are Student's with the degrees of freedom of such a sum (Satterthwaite 1946). Those of a factor are at most
  its levels less 1, and those with which a variance of this kurtosis is known.
- Skewed values make t too large on one side: it is corrected (Hall 1992, "On the removal of skewness by
  transformation"), and only ever towards 0.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from lmgym.sample_sizes import largest_spread
from lmgym.statistics import EQUAL, NOTHING, TOO_FEW, Estimate, Floats, degrees_of_freedom

MOST = 1_000_000  # levels that a size may ask for


@dataclass(frozen=True)
class Crossed:
    """A mean over units and kinds with its interval over both, and the parts of its variance."""

    estimate: Estimate
    p: float
    """two-sided, of a mean of 0"""
    units: int
    kinds: int
    of_units: float = 0.0
    """part of the variance that falls with the number of units, also by more cells"""
    of_kinds: float = 0.0
    """part of the variance that falls with the number of kinds alone"""
    of_cells: float = 0.0
    """variance if all cells were independent"""

    def units_needed(self, difference: float, alpha: float, power: float = 0.9) -> int | None:
        """The units with which a mean of this size would be found, of these kinds; None if no number is enough."""
        return _least(lambda units: self.detectable(alpha, power, units=units), difference)

    def kinds_needed(self, difference: float, alpha: float, power: float = 0.9) -> int | None:
        """The same of kinds, of these units."""
        return _least(lambda kinds: self.detectable(alpha, power, kinds=kinds), difference)

    def detectable(
        self, alpha: float, power: float = 0.9, units: int | None = None, kinds: int | None = None
    ) -> float | None:
        """The mean that is found with this power, with other numbers of units and kinds if given.

        The part of units is its upper confidence limit of 90%, since few units may agree by chance. None for fewer than
        2 units or kinds.
        """
        units, kinds = units or self.units, kinds or self.kinds
        if min(self.units, self.kinds) < 2:
            return None
        of_units = largest_spread(math.sqrt(self.of_units), self.units) ** 2 * self.units / units
        of_kinds = self.of_kinds * self.kinds / kinds
        of_cells = self.of_cells * self.units / units
        total = of_units + of_kinds
        if total == 0:
            return 0.0
        freedom = total**2 / (of_units**2 / (units - 1) + (of_kinds + of_cells) ** 2 / (kinds - 1))
        return -math.sqrt(total) * float(special.stdtrit(freedom, alpha / 2) + special.stdtrit(freedom, 1 - power))


def crossed_mean(values: ArrayLike, units: ArrayLike, kinds: ArrayLike, weights: ArrayLike | None = None) -> Crossed:
    """The mean of values[rows] over their cells, which are combinations of units[rows] and kinds[rows].

    With weights[rows] it is the weighted mean over rows, such as the mean of each kind's own mean. Both are random: the
    interval and p-value are those of other units with other kinds. Without an interval for fewer than 2 of either; of
    equal values p is that of all levels having the same sign, 2^(1 - levels).
    """
    given = np.asarray(values, dtype=np.float64)
    if not given.size:
        return Crossed(NOTHING, 1.0, 0, 0)
    unit, kind = (np.unique(np.asarray(one), return_inverse=True)[1] for one in (units, kinds))
    pairs, cell = np.unique(np.stack([unit, kind]), axis=1, return_inverse=True)
    weight = np.ones(len(given)) if weights is None else np.asarray(weights, dtype=np.float64)
    sizes = np.bincount(cell.ravel(), weight)
    cells = np.bincount(cell.ravel(), given * weight) / sizes
    number = len(cells)
    relative = np.ones(number) if weights is None else sizes * number / sizes.sum()
    value = float((cells * relative).mean())
    centred = (cells - value) * relative
    levels = int(unit.max()) + 1, int(kind.max()) + 1
    fewest = min(levels)
    if fewest < 2:
        return Crossed(Estimate(value, None, None, fewest, len(given), TOO_FEW), 1.0, *levels)
    by_unit, by_kind = (np.bincount(codes, centred) / number for codes in pairs)
    of_unit, of_kind, of_cell = (_variance(one) for one in (by_unit, by_kind, centred / number))
    variance = max(of_unit, of_kind, of_unit + of_kind - of_cell)
    if variance <= 1e-20 * max(1.0, value * value):
        p = 1.0 if value == 0 else 2.0 ** (1 - fewest)
        return Crossed(Estimate(value, None, None, fewest, len(given), EQUAL), p, *levels)
    freedom = variance**2 / sum(
        part**2 / degrees_of_freedom(sums, _effective(codes))
        for part, sums, codes in zip((of_unit, of_kind), (by_unit, by_kind), pairs, strict=True)
    )
    error = math.sqrt(variance)
    reach = float(special.stdtrit(freedom, 0.975)) * error
    third = sum(float((sums**3).sum()) for sums in (by_unit, by_kind)) - float(((centred / number) ** 3).sum())
    p = float(2 * special.stdtr(freedom, -_without_skewness(value / error, third / error**3)))
    found = Estimate(value, value - reach, value + reach, fewest, len(given))
    only_kinds = max(0.0, of_kind - of_cell)
    return Crossed(found, p, *levels, max(0.0, variance - only_kinds), only_kinds, of_cell)


def _variance(influence: Floats) -> float:
    """Sum of squares of the influence of independent parts, for one degree of freedom that the mean takes."""
    return float(np.square(influence).sum()) * len(influence) / (len(influence) - 1)


def _without_skewness(t: float, skewness: float) -> float:
    """The size of t by Hall's transformation, at most what it was; `skewness` is that of the mean."""
    corrected = t + skewness / 6 + skewness * t**2 / 3 + skewness**2 * t**3 / 27
    return min(abs(t), max(0.0, corrected * math.copysign(1.0, t)))


def _effective(codes: np.ndarray) -> float:
    sizes = np.bincount(codes)
    return float(sizes.sum() ** 2 / np.square(sizes).sum())


def _least(detectable: Callable[[int], float | None], difference: float) -> int | None:
    """The smallest number of levels with which the difference is detectable; None if up to MOST none is."""

    def enough(number: int) -> bool:
        found = detectable(number)
        return found is not None and found <= difference

    if not enough(MOST):
        return None
    low, high = 1, 2
    while not enough(high):
        low, high = high, min(MOST, 2 * high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
