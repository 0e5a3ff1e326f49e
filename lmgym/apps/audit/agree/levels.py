"""The values that raters' labels have, from the lowest to the highest where they have an order."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lmgym.data.labels import liked
from lmgym.data.rows import number_of
from lmgym.errors import InputError, listed

FIRST, TIE, SECOND = "first", "tie", "second"
MOST_LEVELS = 101  # a slider from 0 to 100
FEW = 0.05  # of a column's labels, which may be something else among numbers


@dataclass(frozen=True)
class Levels:
    """The values that a vote may have."""

    names: tuple[str, ...]
    values: tuple[float, ...]
    """numbers as they are; of words their places"""
    are_ordered: bool
    are_numbers: bool = False

    @property
    def are_grades(self) -> bool:
        """True of more than two levels with an order, in which some disagreements are larger than others."""
        return self.are_ordered and len(self.names) > 2

    @property
    def middle(self) -> str:
        """The name of the label that stands for the raters of a row."""
        return "median" if self.are_grades else "majority"

    def place(self, value: Any) -> int | None:
        """The place of a label among the levels, from 0; None for another one."""
        if self.are_numbers:
            number = number_of(value)
            return self.values.index(number) if number in self.values else None
        word = _word(value).lower()
        return next((place for place, name in enumerate(self.names) if name.lower() == word), None)


VERDICTS = Levels((FIRST, TIE, SECOND), (0.0, 1.0, 2.0), are_ordered=False)
"""on two replies"""


def levels_of(labels: Iterable[Any], given: Sequence[str] = ()) -> Levels:
    """The levels of labels of single replies: `given` ones in their order, numbers in theirs, dislikes before likes.

    Other words have no order. Raises InputError for more than MOST_LEVELS, which are no labels.
    """
    counts = Counter(_word(label) for label in labels)
    numbers = {word: number for word in counts if (number := number_of(word)) == number and abs(number) != float("inf")}
    total = sum(counts.values())
    if given:
        if all(number_of(word) == number_of(word) for word in given):
            return Levels(tuple(given), tuple(map(number_of, given)), are_ordered=True, are_numbers=True)
        return Levels(tuple(given), tuple(map(float, range(len(given)))), are_ordered=True)
    if numbers and sum(counts[word] for word in numbers) >= (1 - FEW) * total:
        values = tuple(sorted(set(numbers.values())))
        names, are_ordered, are_numbers = tuple(f"{value:g}" for value in values), True, True
    else:
        spelled: dict[str, str] = {}
        for word, _ in counts.most_common():
            spelled.setdefault(word.lower(), word)
        names, are_numbers = tuple(sorted(spelled.values())), False
        are_ordered = len(names) == 2 and {liked(name) for name in names} == {True, False}
        if are_ordered:
            names = tuple(sorted(names, key=lambda name: bool(liked(name))))
        values = tuple(map(float, range(len(names))))
    if len(names) > MOST_LEVELS:
        raise InputError(
            f"the labels have {len(names):,} values ({listed(names, 5)}); needed: a column of at most {MOST_LEVELS} "
            "grades or categories; name another one by --vote_column"
        )
    return Levels(names, values, are_ordered, are_numbers)


def _word(value: Any) -> str:
    return str(value).strip()
