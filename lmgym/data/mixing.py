"""Several data sets at once, `--dataset a.jsonl,b.jsonl`, and the proportions in which their rows are drawn.

With weights the set that has the fewest usable rows for its weight is drawn whole, and of each other set a random part
(by `--split_seed`) that stands to it as their weights do: with the weights 2 and 1, sets of 100 and 400 usable rows
give 100 and 50. Rows are drawn after duplicates are rejected and before the split, so both sides have the proportions.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmgym.data.records import Record, iterate_records
from lmgym.data.rejections import Rejection, tally
from lmgym.data.rows import Prompted
from lmgym.data.sampling import ordered_sample
from lmgym.errors import MOST_STEPS, InputError, one_line, shown


@dataclass(frozen=True)
class Part:
    """The rows that are drawn from a data set, one of several."""

    name: str
    usable: int
    """its rows that are neither rejected nor duplicates"""
    drawn: int
    """of these; some may still be too long for the model"""

    def line(self, noun: str) -> str:
        """`a.jsonl: 50 of its 400 usable pairs drawn`."""
        return f"{one_line(self.name)}: {self.drawn:,} of its {self.usable:,} usable {noun} drawn"


def set_names(setting: str) -> list[str]:
    """The data sets of a setting, separated by commas; a path with a comma that exists is one of them.

    Raises InputError for a set that is named twice.
    """
    try:
        is_one = Path(setting).expanduser().exists()
    except (OSError, ValueError):  # too long, or with a NUL
        is_one = False
    names = [setting] if is_one or "," not in setting else [name.strip() for name in setting.split(",")]
    names = [name for name in names if name] or [setting]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"{one_line(', '.join(twice))} is named twice in {one_line(setting)}; needed: each set once")
    return names


class DataSet:
    """The rows of a data set, read anew each time they are iterated; at most its first `max_rows`, each as `change`
    makes it.
    """

    def __init__(
        self,
        name: str,
        split: str,
        max_rows: int | None = None,
        split_column: str | None = None,
        change: Callable[[Record], Record] = lambda record: record,
    ) -> None:
        self.name, self.split, self.max_rows, self.split_column = name, split, max_rows, split_column
        self.change = change
        self.files: set[str] = set()
        """of the rows that were read"""
        self.columns: set[str] = set()
        """of the first row"""
        self.split_values: dict[tuple[str, int], str] = {}
        """by file and line of a row, its value in `split_column`"""
        self._rows: int | None = None

    def __iter__(self) -> Iterator[Record]:
        count = 0
        for record in islice(iterate_records(self.name, self.split), self.max_rows):
            self.files.add(record.file)
            count += 1
            if self.split_column:
                self._note_value(record, self.split_column)
            yield self.change(record)
        self._rows = count

    def _note_value(self, record: Record, column: str) -> None:
        self.columns = self.columns or set(record.fields)
        value = record.fields.get(column)
        if value not in (None, ""):
            text = str(value) if isinstance(value, str | int | float) else json.dumps(value, default=str)
            self.split_values[record.file, record.line] = text

    def __len__(self) -> int:
        if self._rows is None:
            for _ in self:
                pass
        assert self._rows is not None
        return self._rows


def read_sets(
    setting: str, split: str, max_rows: int | None = None, split_column: str | None = None
) -> dict[str, DataSet]:
    """The data sets of a setting by name, at most the first `max_rows` rows of each."""
    return {name: DataSet(name, split, max_rows, split_column) for name in set_names(setting)}


def read_weights(words: str | None, names: Sequence[str], flag: str) -> list[float] | None:
    """The weight of each data set. Raises InputError, naming the flag, for anything but a positive number of each."""
    if words is None:
        return None
    weights = [_number(word) for word in words.split(",")]
    if len(weights) != len(names) or not all(0 < weight <= MOST_STEPS for weight in weights):
        raise InputError(
            f"--{flag} {shown(words)} for {len(names)} data set{'s' * (len(names) > 1)}; needed: a number above 0 for "
            "each, in their order, such as 2,1 for two"
        )
    return weights


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return math.nan


def mix(
    sets: Sequence[int] | NDArray[np.int64], names: Sequence[str], weights: Sequence[float] | None, seed: int
) -> tuple[NDArray[np.int64], list[Part]]:
    """(indices of the rows that are drawn, increasing; the part of each data set, none for a single one).

    `sets`: [rows], the place in `names` of each usable row's set; every set has a row.
    """
    of_row = np.asarray(sets, dtype=np.int64)
    usable = np.bincount(of_row, minlength=len(names))
    if len(names) == 1:
        return np.arange(len(of_row)), []
    drawn = usable
    if weights is not None:
        scale = (usable / weights).min()
        drawn = np.maximum(1, np.minimum(usable, np.round(scale * np.array(weights)).astype(np.int64)))
    kept = [np.flatnonzero(of_row == i)[ordered_sample(usable[i], drawn[i], seed)] for i in range(len(names))]
    parts = [Part(name, int(n), int(k)) for name, n, k in zip(names, usable, drawn, strict=True)]
    return np.sort(np.concatenate(kept)), parts


def sets_of_rows(
    rows: Sequence[Prompted], rejections: Sequence[Rejection], sets: Mapping[str, DataSet], usable: str
) -> NDArray[np.int64]:
    """The place of each row's data set. Raises InputError for a set without a usable row."""
    places: dict[str, int] = {}
    for place, records in enumerate(sets.values()):
        for file in records.files:
            places.setdefault(file, place)
    found = np.fromiter((places[row.file] for row in rows), np.int64, len(rows))
    used = np.bincount(found, minlength=len(sets))
    for place, (name, records) in enumerate(sets.items()):
        if not used[place]:
            faults = [rejection for rejection in rejections if places[rejection.file] == place]
            counts = tally(faults, len(records))
            first = f"; the first: {faults[0]}" if faults else ""
            raise InputError(f"none of the {len(records)} rows of {one_line(name)} is {usable}: {counts.line}{first}")
    return found


def drawn_by_set(parts: Sequence[Part]) -> dict[str, dict[str, int]]:
    """Numbers of drawn rows by data set, where there are several, to be recorded."""
    return {"drawn_by_dataset": {part.name: part.drawn for part in parts}} if parts else {}
