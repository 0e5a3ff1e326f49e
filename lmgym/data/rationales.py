"""Raters' reasons for preferring one reply of a pair to the other, and whether these name the replies by their places.

"Response 2 is wrong" holds in the order alone in which the rater saw the replies; "it is wrong" holds in both.
"""

import re
from typing import Any

from lmgym.config import RATIONALE
from lmgym.data.asked import Fields, is_blank
from lmgym.data.records import Record
from lmgym.data.rejections import NO_VALUE, UNSUPPORTED, WRONG_TYPE, RowError
from lmgym.data.verdicts import MARKS, REPLIES, differing
from lmgym.data.votes import words_of_name
from lmgym.errors import listed, shown

RATIONALES = ("rationale", "rationales", "reason", "reasons", "explanation", "justification")
NAMES = (RATIONALE, *RATIONALES)
"""the column that a flag names, and the usual ones"""
_SAID = "|".join((*REPLIES, "assistant", "model", "option", "candidate", "bot"))
_SAYS = "is|was|has|does|gives|says|answers|one"
PLACE = re.compile(
    rf"\b(?:{_SAID})[\s#(\[*'\"]*(?:(?-i:[AB])|_[ab]|_?[012]|one|two)\b"  # Response 1, reply (A)
    rf"|\b(?:first|second|left|right)[\s-]+(?:{_SAID}|one)s?\b"
    rf"|\b(?:{_SAID}|one)s? (?:on|to) the (?:left|right)\b"
    rf"|\bthe (?:former|latter)\b|\bthe (?:first|second)(?=\s*(?:[,.;:]|$)|\s+(?:{_SAYS})\b)",
    re.IGNORECASE,
)
LETTER = re.compile(r"(?<![.!?:]\s)(?<= )A\b|\bA(?='s\b| is\b| was\b| has\b| does\b)|\bB\b")
"""A or B alone, unless A may be the article that begins a sentence"""


def rationale_of(record: Record) -> str:
    """The reasons of a row. Raises RowError where there are none, or two columns that may hold them."""
    fields = record.fields
    filled = [RATIONALE] if RATIONALE in fields else [name for name in NAMES if not is_blank(fields.get(name))]
    if len(filled) > 1:
        found = f"either {listed(filled)} may be the reasons; needed: --rationale_column with one of them"
        raise RowError(filled[1], found, UNSUPPORTED)
    name = filled[0] if filled else next((name for name in NAMES if name in fields), RATIONALES[0])
    value: Any = fields.get(name)
    if is_blank(value):
        raise RowError(name, "no reasons", NO_VALUE)
    if not isinstance(value, str):
        raise RowError(name, f"{shown(value)}; needed: text", WRONG_TYPE)
    return value.strip()


def names_places(text: str) -> bool:
    """True if a text names replies by their places: "Response 2", "the first one", "B"."""
    return bool(PLACE.search(text) or LETTER.search(text))


def chosen_is_first(record: Record) -> bool | None:
    """True if the preferred reply of a pair is the one that its row names first, as response_a beside response_b.

    None where names do not tell, as those of chosen and rejected.
    """
    columns = [words_of_name(record.column(name)) for name in ("chosen", "rejected")]
    marks = differing(*columns)
    return None if marks is None or not {marks, marks[::-1]} & {*MARKS} else marks in MARKS


def has_rationale(fields: Fields) -> bool:
    """True for a row with a column of reasons."""
    return any(not is_blank(fields.get(name)) for name in NAMES)
