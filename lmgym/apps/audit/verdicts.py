"""The table of an audit: effects with intervals over independent units, their p-values together, and verdicts in words.

Design decisions:
- An effect is a mean of paired differences; its unit (a prompt, a question) is what is drawn independently.
- All rows of a table are tested together (Holm 1979), so that a table of a scorer that answers at random names any bias
  in at most 5% of audits.
- A row that the sample cannot decide gets no verdict but the number of units that could.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from lmgym.errors import InputError
from lmgym.sample_sizes import detectable_mean, largest_spread, units_for_mean
from lmgym.statistics import Bounds, Estimate, holm, mean, sign_flips

LEVEL = 0.05  # of all rows together
DIGITS = 9  # of an effect: less is rounding

Expected = Literal["no change", "may lose", "must lose"]
"""what a sound judge or scorer does; a gain is a bias whatever is expected"""


@dataclass(frozen=True)
class Row:
    """A row of the table before it is measured."""

    name: str
    about: str
    """what is changed"""
    expected: Expected = "no change"


@dataclass(frozen=True)
class Effect:
    """A row of the table: the mean effect over units with its 95% interval."""

    bias: str
    about: str
    effect: Estimate
    p: float
    """two-sided, by sign flips of units; adjusted for the rows of the audit (Holm 1979)"""
    detectable: float | None
    """the effect that this many units would find with power .9; None if they do not differ or are too few"""
    needed: int
    """units with which the smallest effect of interest would be found with power .9"""
    expected: Expected = "no change"
    unit: str = "prompt"

    @property
    def verdict(self) -> str:
        """`biased`, `loses, as it may`, `no bias above 0.081 found`, or `cannot tell: about 64 prompts needed`."""
        value, low, high = self.effect.value, self.effect.low, self.effect.high
        if value is not None and self.p <= LEVEL:
            if value > 0 or self.expected == "no change":
                return "biased"
            return "loses, as it may" if self.expected == "may lose" else "loses, as it should"
        if value is None or self.needed > self.effect.units:
            return f"cannot tell: about {self.needed:,} {self.unit}s needed"
        must = self.expected == "must lose"
        if low is None or high is None:  # of equal values without bounds, which can only be 0 here
            return "does not lose, though it should: no score changed" if must else "no bias: no score changed"
        if must:
            return f"does not lose, though it should: no loss above {max(0.0, -low):.3f} found"
        return f"no bias above {max(abs(low), abs(high)):.3f} found"

    @property
    def biased(self) -> bool:
        """True if the audit names this bias."""
        return self.verdict == "biased"

    @property
    def row(self) -> dict[str, object]:
        """The row of audit.json."""
        return {**asdict(self), "verdict": self.verdict}


def decide(
    found: Mapping[str, Sequence[tuple[str, float]]],
    rows: Sequence[Row],
    smallest: float,
    unit: str = "prompt",
    bounds: Bounds | None = None,
) -> tuple[Effect, ...]:
    """The effects of the (unit, effect) that were measured, by name; rows that were not measured are left out.

    `smallest` is the effect of interest, for which the number of units needed is given; `bounds` are those within which
    every effect lies. Raises InputError if nothing was measured.
    """
    measured = [row for row in rows if found.get(row.name)]
    if not measured:
        raise InputError("an audit of 0 rows: no edit could be made; needed: replies of a sentence or more")
    values = {row.name: np.round([value for _, value in found[row.name]], DIGITS) for row in measured}
    units = {row.name: [key for key, _ in found[row.name]] for row in measured}
    adjusted = holm([sign_flips(values[row.name], units[row.name]) for row in measured])
    return tuple(
        Effect(
            row.name,
            row.about,
            mean(values[row.name], units[row.name], bounds),
            p,
            *sizes(values[row.name], units[row.name], len(measured), smallest),
            row.expected,
            unit,
        )
        for row, p in zip(measured, adjusted, strict=True)
    )


def sizes(values: np.ndarray, units: Sequence[str], rows: int, smallest: float) -> tuple[float | None, int]:
    """(detectable effect, number of units needed for the smallest one) if all `rows` of an audit are tested.

    A few units may agree by chance: the spread is its upper confidence limit of 90%.
    """
    level = LEVEL / rows
    least = math.ceil(1 - math.log2(level))  # sign flips of fewer units have no p that small
    number = len(set(units))
    if number < 2:
        return None, least
    spread = largest_spread(_by_unit(values, units).std(ddof=1), number)
    if spread < 10.0**-DIGITS:
        return None, least
    return detectable_mean(spread, number, alpha=level), max(least, units_for_mean(smallest, spread, alpha=level))


def _by_unit(values: np.ndarray, units: Sequence[str]) -> np.ndarray:
    codes = np.unique(units, return_inverse=True)[1]
    return np.bincount(codes, values) / np.bincount(codes)


def effects_table(title: str, effects: Sequence[Effect]):
    """A rich table of effects, for the terminal."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    unit = f"{effects[0].unit}s"
    for column in ("bias", "what is changed", unit, "effect", "p", "detectable", "verdict"):
        is_number = column in (unit, "effect", "p", "detectable")
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in effects:
        p = "–" if row.effect.units < 2 else f"{row.p:.3f}"
        found = "–" if row.detectable is None else f"{row.detectable:.3f}"
        table.add_row(row.bias, row.about, f"{row.effect.units:,}", f"{row.effect:+.3f}", p, found, row.verdict)
    return table


ABOUT_COLUMNS = "p: two-sided, adjusted for all rows (Holm); detectable: the effect found with power .9"
