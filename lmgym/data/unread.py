"""Columns that nothing reads and that an answer may need, judged by their values and not by their names.

A row's question may be about a passage (prose beside a question of at most a few sentences), or about options of which
the answer is one. A set with such a column is not learned without it, unless the user says so.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

SHORT_QUESTION = 60  # words, most of a question that may be about something that stands elsewhere
PROSE = 6  # words, fewest of a passage
SENTENCE = 3  # words, fewest of a sentence in a list or an object, whose other values may be names
TOLD = 0.6  # of a text's words, with which it says what is read already
ROWS = 0.25  # share of the rows that must have one
WORD = re.compile(r"[^\W\d_]{2,}(?:[-/.][^\W_]+)*")
MOST_CHARACTERS = 2000  # of a value that are looked at


@dataclass(frozen=True)
class Looked:
    """A row as it is judged."""

    line: int
    question: str
    read: list[str]
    """the texts of columns that are read"""
    columns: Mapping[str, Any]
    """all of them, by their names in the file"""


@dataclass(frozen=True)
class Needed:
    """A column that answers may need."""

    column: str
    what: str
    """a passage, or options"""
    line: int
    text: str
    """of this line"""


def as_text(value: Any) -> str:
    """A passage or options in any structure as lines of text: items of a list, `key: value` of an object."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        lines = ((str(key), as_text(item)) for key, item in value.items())
        return "\n".join(f"{key}: {text}" for key, text in lines if text)
    if isinstance(value, list | tuple):
        return "\n".join(filter(None, map(as_text, value)))
    return "" if value is None else str(value)


def options_of(value: Any) -> dict[str, str]:
    """Options by their letters or numbers; empty for anything else."""
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    found = {str(key): item for key, item in items}
    if isinstance(value, Mapping) and all(
        isinstance(item, list) for item in found.values()
    ):  # {"text": [], "label": []}
        columns = [item for item in found.values() if item and all(isinstance(one, str) for one in item)]
        if len(columns) == len(found) == 2 and len(columns[0]) == len(columns[1]):
            texts, keys = sorted(columns, key=lambda column: -sum(map(len, column)))
            return dict(zip(keys, texts, strict=True))
    good = len(found) > 1 and all(isinstance(item, str) and 0 < len(item) < 400 for item in found.values())
    return found if good else {}


def needed_columns(rows: Sequence[Looked], unread: Iterable[str], of_prompts: Collection[str] = ()) -> list[Needed]:
    """The unread columns that answers may need; `of_prompts` are those that other tools' rows have for a prompt."""
    short = [row for row in rows if 0 < len(row.question.split()) <= SHORT_QUESTION]
    if len(short) < max(1, len(rows) // 2):
        return []
    found = []
    for column in unread:
        filled = [row for row in short if isinstance(row.columns.get(column), str | list | dict)]
        filled = [row for row in filled if row.columns[column]]
        if not filled or len(filled) < max(ROWS * len(rows), min(2, len(rows))):  # one row is no set
            continue
        if _are_options(filled, column):
            what = "options"
        elif _is_prose(filled, column):
            what = "a passage"
        else:
            what = "a part of the prompt" if column in of_prompts else ""
        if what:
            found.append(Needed(column, what, filled[0].line, as_text(filled[0].columns[column])))
    return found


def _are_options(rows: Sequence[Looked], column: str) -> bool:
    """True if, in most rows, a text that is read is one of the options, or its letter or number."""
    hits = 0
    for row in rows:
        options = options_of(row.columns[column])
        named = {_plain(word) for both in options.items() for word in both} | {str(i) for i in range(len(options) + 1)}
        hits += bool(options) and any(_plain(text) in named for text in row.read if text)
    return hits > len(rows) / 2


def _is_prose(rows: Sequence[Looked], column: str) -> bool:
    """True if the median value is several words, and most values neither hold a text that is read nor stand in one."""
    words, own = [], 0
    for row in rows:
        text = as_text(row.columns[column])[:MOST_CHARACTERS]
        words.append(_words_of_prose(row.columns[column]))
        plain, others = _plain(text), [_plain(one) for one in (row.question, *row.read) if one]
        told = {*WORD.findall(plain)} & {*WORD.findall(" ".join(others))}
        is_told = len(told) > TOLD * len({*WORD.findall(plain)})  # another wording of what is read
        own += not is_told and not any(plain in other or other in plain for other in others)
    return bool(np.median(words) >= PROSE and own > len(rows) / 2)


def _words_of_prose(value: Any, within: bool = False) -> int:
    """Words of a text, of a list's items together, or of an object's longest value; a sentence within is enough."""
    if isinstance(value, str):
        words = len(WORD.findall(value[:MOST_CHARACTERS]))
        is_sentence = within and words >= SENTENCE and value.rstrip()[-1:] in (".", "!", "?")
        return max(words, PROSE) if is_sentence else words
    if isinstance(value, list):
        return sum(_words_of_prose(item, True) for item in value[:PROSE])
    if isinstance(value, Mapping):
        return max((_words_of_prose(item, True) for item in value.values()), default=0)
    return 0


def _plain(text: str) -> str:
    return " ".join(text[:MOST_CHARACTERS].lower().split())
