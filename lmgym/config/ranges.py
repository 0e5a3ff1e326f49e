"""The numbers that a setting may have, checked once for a whole config."""

import functools
import math
from dataclasses import dataclass, fields, is_dataclass
from typing import get_type_hints

from lmgym.errors import MOST_SEED, InputError, shown


@dataclass(frozen=True)
class Range:
    """The numbers that a setting may have, as an annotation: `Annotated[float, Range(0, 1)]`. NaN never fits."""

    low: float
    high: float
    above: bool = False
    """`low` itself does not fit"""
    below: bool = False
    """`high` itself does not fit"""
    infinite: bool = False
    """inf fits"""
    also: tuple[float | None, ...] = ()
    """further values that fit, such as -1 or None"""
    hint: str = ""
    """advice at the end of the error message"""

    def fits(self, value: object) -> bool:
        """True if a setting may have the value."""
        if value in self.also:
            return True
        if not isinstance(value, int | float):
            return False
        if value == math.inf:
            return self.infinite
        return (self.low < value if self.above else self.low <= value) and (
            value < self.high if self.below else value <= self.high
        )

    def check(self, name: str, value: object) -> None:
        """Raises InputError if the value does not fit."""
        if not self.fits(value):
            raise InputError(f"{name}={shown(value)}; needed: {self}")

    def __str__(self) -> str:
        """For messages: `0 to 1`, `above 0; at most 1,000, or inf; 0.2 is usual`."""
        low, high = f"{self.low:,.15g}", f"{self.high:,.15g}"
        if self.above:
            bounds = f"above {low}, below {high}" if self.below else f"above {low}; at most {high}"
        else:
            bounds = f"{low} or more, below {high}" if self.below else f"{low} to {high}"
        others = [*(["inf"] if self.infinite else []), *("none" if v is None else f"{v:,.15g}" for v in self.also)]
        return "".join([bounds, *(f", or {other}" for other in others), self.hint and f"; {self.hint}"])


class UpTo(int):
    """A number that the user did not set: fewer where the data are few. A plain number is taken as it is."""


class Preferred(str):
    """A word that the user did not set: another one where the machine is better at it. A plain one stays."""

    __slots__ = ()


def largest_divisor(number: int, most: int) -> int:
    """The largest number up to `most` that divides a number of at least 1."""
    return next(size for size in range(max(1, min(number, most)), 0, -1) if number % size == 0)


SEED = Range(0, MOST_SEED)
"""of numpy and torch"""


def seed_settings(kind: type) -> frozenset[str]:
    """The fields of a dataclass that are seeds: those whose range is SEED."""
    return frozenset(name for name, range in _ranges(kind).items() if range is SEED)


def check_ranges(config: object) -> None:
    """Raises InputError for the first field, also of a group, that is outside its `Range`, in declaration order."""
    ranges = _ranges(type(config))  # type: ignore[arg-type]
    for field in fields(config):  # type: ignore[arg-type]
        value = getattr(config, field.name)
        if is_dataclass(value):
            check_ranges(value)
        elif field.name in ranges:
            ranges[field.name].check(field.name, value)


@functools.cache
def _ranges(kind: type) -> dict[str, Range]:
    """The ranges of a dataclass by field."""
    hints = get_type_hints(kind, include_extras=True)
    extras = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {name: extra for name, found in extras.items() for extra in found if isinstance(extra, Range)}
