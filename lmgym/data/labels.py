"""Labels of single replies: one table of what says that a reply was liked, for every stage and every form of a file.

A column of labels is judged from all its values: one that holds no word of the table is no column of labels (a topic,
say), and one that mixes both is refused, since nobody can say what the others mean.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lmgym.data.rejections import CONFLICT_OF_LABELS, WRONG_TYPE, RowError
from lmgym.errors import InputError, listed, shown

LABELS = ("label", "kto_tag", "accepted")
"""our names of columns that say whether a reply was liked; --label_column names another one"""
LIKED = "true yes y 1 like liked up thumbsup upvote good positive accept accepted chosen desirable 👍 👍️"
DISLIKED = "false no n 0 -1 dislike disliked down thumbsdown downvote bad negative reject rejected undesirable 👎 👎️"
WITHIN = re.compile(r"(?<=\w)[-_\s]+(?=\w)")  # thumbs_up
NUMBER = re.compile(r"[+-]?\d+(\.\d*)?")
TABLE = dict.fromkeys(LIKED.split(), True) | dict.fromkeys(DISLIKED.split(), False)
NEEDED = "needed: true or false, 1 or 0 (or -1), yes or no, up or down"
MOST_KINDS = 50  # of values that are counted apart
FEW = 0.05  # of a column's labels, which may be something else: their rows are rejected


def liked(value: Any) -> bool | None:
    """True or False for a label in any writing, such as 1, 0.0, "No", -1 or "thumbs_up"; None for all else."""
    return TABLE.get(_word_of(value))


def _word_of(value: Any) -> str:
    """A label in the writing of TABLE: "1" for 1.0 and "1.00", "thumbsup" for "Thumbs_up"."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return str(value).lower() if isinstance(value, bool) else ""
    word = str(value).strip().lower()
    if NUMBER.fullmatch(word):
        return f"{float(word) + 0.0:g}"  # -0.0 is 0
    return WITHIN.sub("", word)


@dataclass
class LabelCounts:
    """The labels of a column, counted by value."""

    known: int = 0
    unknown: int = 0
    minus: int = 0
    zero: int = 0
    others: Counter = field(default_factory=Counter)
    """values that are in no table, as they are shown"""

    def add(self, value: Any) -> None:
        """Count a label that is not null."""
        found = liked(value)
        if found is None:
            self.unknown += 1
            if len(self.others) < MOST_KINDS:
                self.others[shown(value, 40)] += 1
            return
        self.known += 1
        if not found:
            word = _word_of(value)
            self.minus += word == "-1"
            self.zero += word == "0"

    def refuse_unclear(self, where: str, column: str) -> None:
        """Raises InputError for a column whose values have no one meaning."""
        if self.unknown > max(1, FEW * (self.known + self.unknown)) and self.known:
            found = f"{self.known:,} labels and {self.unknown:,} other values ({listed(self.others)})"
            raise InputError(
                f"{where}: column {column} holds {found}; {NEEDED}; or --label_column with another column, or "
                f"--ignore_columns {column}"
            )
        if self.minus and self.zero:
            raise InputError(
                f"{where}: column {column} holds -1 ({self.minus:,} rows) and 0 ({self.zero:,} rows), of which 0 may "
                "mean disliked or undecided; needed: -1 and 1 alone, or 0 and 1"
            )


def label_of(fields: Mapping[str, Any], names: Iterable[str] = LABELS) -> tuple[str, bool] | None:
    """(our name of the column, True if the reply was liked) of a row; None where no column says it.

    Raises RowError for a value that is in no table, and for two columns that say different things.
    """
    found: dict[str, bool] = {}
    for name in names:
        if (value := fields.get(name)) is None or value == "":
            continue
        if (verdict := liked(value)) is None:
            raise RowError(name, f"{shown(value)}; {NEEDED}", WRONG_TYPE)
        found[name] = verdict
    if len(set(found.values())) > 1:
        said = " and ".join(f"{name} {str(verdict).lower()}" for name, verdict in found.items())
        raise RowError(next(iter(found)), f"{said}; needed: columns that agree, or one of them", CONFLICT_OF_LABELS)
    return next(iter(found.items()), None)
