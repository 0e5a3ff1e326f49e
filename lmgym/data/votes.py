"""Raters' votes in a cell: one verdict, several, with the raters or without, or that they cannot say."""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lmgym.data.json_rows import parse_json
from lmgym.data.rejections import OUT_OF_RANGE, RowError

VERDICTS = {
    "winner", "wins", "preference", "preferred", "prefers", "choice", "verdict", "comparison", "better", "best",
    "vote", "votes", "selected", "judgement", "judgment",
}  # fmt: skip
"""words in the names of columns of verdicts"""
SAID = {"label", "rating", "grade", "score", "annotation", "category", "opinion", "value", "answer"}
"""words, beside these, in the names of what a rater said of a reply, or in an object with the rater"""
RATERS = {"rater", "annotator", "labeler", "labeller", "judge", "evaluator", "reviewer"}
"""words in the names of columns of several raters' verdicts, which end in a number: rater_1, rater_2"""
WHO = RATERS | {"worker", "coder", "completed", "crowdworker"}
"""words, beside these, in the names of columns that say who a rater was: worker_id, completed_by"""
UNSURE = re.compile(
    r"(i )?(am )?(can ?not|can'?t|could ?not|do ?n[o']?t|unable to|impossible to) "
    r"(say|tell|decide|judge|know|choose|compare|rate)\b.*|"
    r"(i am |i'?m )?(not sure|unsure|uncertain|unclear|undecided)\b.*|"
    r"skip(ped)?|abstain(ed)?|no opinion|no answer|n/?a|\?+"
)
"""what raters say, in lower case, who have seen a row and give no verdict"""
MOST_COUNTED = 10_000
"""votes that a count stands for"""
ARRAY = re.compile(r"\[[-\d.\s]+\]")
QUOTED = re.compile(r"""'([^']*)'|"([^"]*)\"""")


@dataclass(frozen=True)
class Vote:
    """One vote in a cell of verdicts."""

    rater: str
    """empty where the cell names nobody"""
    value: Any
    place: int = 0
    """in the cell's list, from 0, in which missing votes have a place too"""


def is_unsure(value: Any) -> bool:
    """True of a rater's words that give no verdict, such as "cannot say" or ?."""
    return isinstance(value, str) and bool(
        UNSURE.fullmatch(" ".join(value.lower().replace("_", " ").split()).strip(".!"))
    )


def votes_in(cell: Any, is_verdict: Callable[[Any], bool]) -> list[Vote]:
    """The votes of a cell: one, a list of several raters', also as text of JSON, Python or NumPy, or of objects with
    the rater and the vote, an object with a vote by rater, or one with counts by verdict. Missing ones are left out.

    `is_verdict` tells words of verdicts from names of raters. Raises RowError for an object in text that is not JSON,
    and for counts above MOST_COUNTED.
    """
    if isinstance(cell, str) and cell.strip().startswith("{"):
        cell = parse_json(cell.strip())
    if isinstance(cell, dict):
        return _votes_of_object(cell, is_verdict)
    votes = [
        _vote_of_object(item, place) if isinstance(item, dict) else Vote("", item, place)
        for place, item in enumerate(cells_in(cell))
    ]
    return [vote for vote in votes if not is_missing(vote.value)]


def _votes_of_object(cell: Mapping[str, Any], is_verdict: Callable[[Any], bool]) -> list[Vote]:
    are_counts = all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in cell.values())
    if cell and are_counts and all(is_verdict(word) or is_unsure(word) for word in cell):
        if sum(cell.values()) > MOST_COUNTED:
            raise RowError("(votes)", f"{sum(cell.values()):,} votes; needed: at most {MOST_COUNTED:,}", OUT_OF_RANGE)
        return [Vote("", word) for word, count in cell.items() for _ in range(count)]
    return [Vote(str(rater), value) for rater, value in cell.items() if not is_missing(value)]


def _vote_of_object(item: Mapping[str, Any], place: int) -> Vote:
    """Of an object with the name of a rater and what the rater said; missing where it has no such parts."""
    rater = next(
        (value for name, value in item.items() if names_rater(name) and not isinstance(value, list | dict)), ""
    )
    said = [value for name, value in item.items() if is_verdict_name(name) and not names_rater(name)]
    return Vote(str(rater), said[0] if said else None, place)


def names_rater(column: Any) -> bool:
    """True of a column with the name or number of the rater: annotator, worker_id; not of one with a rater's votes."""
    words = {word.rstrip("s") for word in words_of_name(column)} if isinstance(column, str) else set()
    return bool(words & WHO) and words <= WHO | {"id", "name", "number", "by", "key"}


def is_verdict_name(column: Any) -> bool:
    """True of a column that is called as verdicts, labels or grades are."""
    return isinstance(column, str) and bool((VERDICTS | SAID) & {word.rstrip("s") for word in words_of_name(column)})


def is_missing(verdict: Any) -> bool:
    """True of null, NaN and blanks."""
    return verdict is None or verdict != verdict or (isinstance(verdict, str) and not verdict.strip())


def words_of_name(text: str) -> list[str]:
    """The words and numbers of a column's name, or of a verdict, in lower case: response_2 has two."""
    return re.findall(r"[^\W\d_]+|\d+", text.lower())


def said_by_several(value: Any) -> list[Any]:
    """The verdicts of a cell that are there: `cells_in` without missing ones."""
    return [item for item in cells_in(value) if not is_missing(item)]


def cells_in(value: Any) -> list[Any]:
    """A cell's one item, or those of a list, also as text of JSON, Python or NumPy, missing ones included."""
    if isinstance(value, str) and value.strip().startswith("["):
        text = value.strip()
        with suppress(RowError):
            parsed = parse_json(text)
            return parsed if isinstance(parsed, list) else [value]
        value = [one or other for one, other in QUOTED.findall(text)] or (
            text[1:-1].split() if ARRAY.fullmatch(text) else value
        )
    return value if isinstance(value, list) else [value]
