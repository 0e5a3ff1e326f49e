"""The table of an audit: effects with intervals over independent units, their p-values together, and verdicts in words.

Design decisions:
- An effect is a mean of paired differences; its unit (a prompt, a question) is what is drawn independently.
- A bias that rests on words is tested with prompts and wordings drawn at random (lmgym/crossed.py), so that it is not
  named for one wording. Whether a wording pays is tested with prompts at random, all wordings together (Holm 1979).
- All rows of a table are tested together (Holm), so that an audit of a scorer that answers at random names any bias in
  at most 5% of cases.
- A row that the sample cannot decide gets no verdict but the number of units, or of wordings, that could.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from lmgym.crossed import Crossed, crossed_mean
from lmgym.errors import InputError
from lmgym.sample_sizes import detectable_mean, largest_spread, units_for_mean
from lmgym.statistics import Bounds, Estimate, holm, mean, mean_exceeds, sign_flips

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
    wordings: int = 0
    """that stand for the bias; 0 of one that rests on no words, 1 of a text that is itself looked for"""


class Observed(NamedTuple):
    """An effect that was measured."""

    unit: str
    effect: float
    wording: str = ""
    beside: float | None = None
    """the effect against a second version, which a bias must have too; None if there is none"""

    @property
    def against_second(self) -> float:
        """The effect against the second version, and where there is none that against the first."""
        return self.effect if self.beside is None else self.beside


@dataclass(frozen=True)
class Wording:
    """A wording of a bias: the mean effect over the units that drew it."""

    text: str
    effect: Estimate
    p: float | None
    """two-sided, by a t test over units; adjusted for all wordings of the audit (Holm 1979). None of one that too few
    units drew"""

    @property
    def pays(self) -> bool:
        """True if this wording raises the score."""
        return self.p is not None and self.p <= LEVEL and (self.effect.value or 0) > 0


@dataclass(frozen=True)
class Effect:
    """A row of the table: the mean effect over units with its 95% interval."""

    bias: str
    about: str
    effect: Estimate
    """over units, and of a bias that rests on words over wordings too"""
    p: float
    """two-sided, adjusted for the rows of the audit (Holm 1979); where there is a second version, of both effects"""
    detectable: float | None
    """the effect that this many units would find with power .9; None if they do not differ or are too few"""
    needed: int | None
    """units with which the smallest effect of interest would be found with power .9; None if no number is enough"""
    expected: Expected = "no change"
    unit: str = "prompt"
    units: int = 0
    beside: float | None = None
    """mean effect against the second version; None if there is none"""
    wordings: tuple[Wording, ...] = ()
    single: bool = False
    """True of a text that is itself looked for"""
    wordings_needed: int | None = None
    """wordings with which these units would find it, where more units are not enough"""
    explained_by: str = ""
    """another row, whose own edit accounts for most of this effect"""

    @property
    def verdict(self) -> str:
        """`biased`, `as line breaks`, `loses, as it may`, `no bias above 0.081`, `cannot tell: about 64 prompts`."""
        value, low, high = self.effect.value, self.effect.low, self.effect.high
        if value is not None and self.p <= LEVEL:
            if value > 0 or self.expected == "no change":
                if self.explained_by:
                    return f"as {self.explained_by}"
                return ("this wording pays" if value > 0 else "this wording costs") if self.single else "biased"
            return "loses, as it may" if self.expected == "may lose" else "loses, as it should"
        if self.undecided:
            return f"cannot tell: {self._what_is_needed}"
        must = self.expected == "must lose"
        if low is None or high is None:  # of equal values without bounds, which can only be 0 here
            return "does not lose, though it should: no score changed" if must else "no bias: no score changed"
        if must:
            return f"does not lose, though it should: no loss above {max(0.0, -low):.3f} found"
        return f"no bias above {max(abs(low), abs(high)):.3f} found"

    @property
    def undecided(self) -> bool:
        """True where more units or wordings are needed."""
        if self.effect.value is None:
            return True
        return self.p > LEVEL and (self.needed is None or self.needed > self.units)

    @property
    def _what_is_needed(self) -> str:
        if self.needed is not None:
            return f"about {self.needed:,} {self.unit}s needed"
        if self.wordings_needed is not None:
            return f"about {self.wordings_needed:,} wordings needed; more {self.unit}s will not help"
        return f"more {self.unit}s and more wordings needed"

    @property
    def biased(self) -> bool:
        """True if the audit names this bias."""
        return self.verdict == "biased"

    @property
    def moves(self) -> bool:
        """True of an effect that a sound judge or scorer would not have, whatever explains it."""
        value = self.effect.value
        return value is not None and self.p <= LEVEL and (value > 0 or self.expected == "no change")

    @property
    def row(self) -> dict[str, object]:
        """The row of audit.json."""
        return {**asdict(self), "verdict": self.verdict}


def decide(
    found: Mapping[str, Sequence[tuple[str, float] | Observed]],
    rows: Sequence[Row],
    smallest: float,
    unit: str = "prompt",
    bounds: Bounds | None = None,
) -> tuple[Effect, ...]:
    """The effects of what was measured, (unit, effect) or more, by name; rows that were not measured are left out.

    `smallest` is the effect of interest, for which the number of units needed is given; `bounds` are those within which
    every effect lies. Raises InputError if nothing was measured.
    """
    measured = {row: [Observed(*one) for one in found[row.name]] for row in rows if found.get(row.name)}
    if not measured:
        raise InputError("an audit of 0 rows: no edit could be made; needed: replies of a sentence or more")
    made = [_effect(row, seen, len(measured), smallest, unit, bounds) for row, seen in measured.items()]
    adjusted = holm([effect.p for effect in made])
    of_wordings = iter(_wordings([seen for row, seen in measured.items() if row.wordings > 1]))
    return tuple(
        replace(effect, p=p, wordings=next(of_wordings) if row.wordings > 1 else ())
        for effect, row, p in zip(made, measured, adjusted, strict=True)
    )


def _effect(row: Row, seen: Sequence[Observed], rows: int, smallest: float, unit: str, bounds: Bounds | None) -> Effect:
    """The effect of a row, with its p-value before it is adjusted."""
    units = [one.unit for one in seen]
    values = np.round([one.effect for one in seen], DIGITS)
    has_second = any(one.beside is not None for one in seen)
    second = np.round([one.against_second for one in seen], DIGITS) if has_second else None
    if row.wordings > 1:
        kinds = [one.wording for one in seen]
        crossed = crossed_mean(values, units, kinds)
        estimate, p = crossed.estimate, crossed.p
        p_second = crossed_mean(second, units, kinds).p if second is not None else p
        found, needed, more = crossed_sizes(crossed, rows, smallest)
    else:
        estimate, p = mean(values, units, bounds), sign_flips(values, units)
        p_second = sign_flips(second, units) if second is not None else p
        (found, needed), more = sizes(values, units, rows, smallest), None
    other = None if second is None else float(second.mean())
    value = estimate.value or 0.0
    if other is not None and (value > 0 or row.expected == "no change"):
        p = max(p, p_second) if value * other > 0 else 1.0
    single = row.wordings == 1
    return Effect(
        row.name, row.about, estimate, p, found, needed, row.expected, unit, len(set(units)), other, (), single, more
    )


def _wordings(seen: Sequence[Sequence[Observed]]) -> list[tuple[Wording, ...]]:
    """The wordings of each row. Those that too few units drew for any p-value to be small are not tested."""
    by_row = []
    for rows in seen:
        found: dict[str, list[Observed]] = {}
        for one in rows:
            found.setdefault(one.wording, []).append(one)
        by_row.append(found)
    every = [(text, ones) for found in by_row for text, ones in found.items()]
    least = least_units(len(every))
    tested = [i for i, (_, ones) in enumerate(every) if len({one.unit for one in ones}) >= least]
    p_values = dict(zip(tested, holm([_p_of_both(every[i][1]) for i in tested]), strict=True)) if tested else {}
    made = [
        Wording(text, mean([one.effect for one in ones], [one.unit for one in ones]), p_values.get(i))
        for i, (text, ones) in enumerate(every)
    ]
    numbers = np.cumsum([0, *(len(found) for found in by_row)])
    return [tuple(made[first:last]) for first, last in itertools.pairwise(numbers)]


def _p_of_both(seen: Sequence[Observed]) -> float:
    """By a t test over units, of the effect and of that against the second version, which must have the same sign.

    Random sign flips have no p-value that is small enough for all wordings of an audit.
    """
    units = [one.unit for one in seen]
    sides = [[one.effect for one in seen], [one.against_second for one in seen]]
    sign = np.sign(np.mean(sides[0]))
    means = [sign * _by_unit(np.round(side, DIGITS), units) for side in sides]
    return min(1.0, 2 * max(float(mean_exceeds(values, 0.0)) for values in means))


def least_units(rows: int) -> int:
    """The fewest units whose sign flips have a p-value that is small enough for so many rows."""
    return math.ceil(1 - math.log2(LEVEL / max(1, rows)))


def sizes(values: np.ndarray, units: Sequence[str], rows: int, smallest: float) -> tuple[float | None, int]:
    """(detectable effect, number of units needed for the smallest one) if all `rows` of an audit are tested.

    A few units may agree by chance: the spread is its upper confidence limit of 90%.
    """
    level, least = LEVEL / rows, least_units(rows)
    number = len(set(units))
    if number < 2:
        return None, least
    spread = largest_spread(_by_unit(values, units).std(ddof=1), number)
    if spread < 10.0**-DIGITS:
        return None, least
    return detectable_mean(spread, number, alpha=level), max(least, units_for_mean(smallest, spread, alpha=level))


def crossed_sizes(crossed: Crossed, rows: int, smallest: float) -> tuple[float | None, int | None, int | None]:
    """(detectable effect, units needed for the smallest one, wordings needed where no number of units is enough)."""
    level = LEVEL / rows
    if not crossed.of_units + crossed.of_kinds:
        return None, least_units(rows), None
    needed = crossed.units_needed(smallest, level)
    more = None if needed is not None else crossed.kinds_needed(smallest, level)
    return crossed.detectable(level), needed, more


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
