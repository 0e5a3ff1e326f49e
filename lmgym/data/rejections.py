"""Rows that cannot be used: where each one is, why, and how many there are of each reason."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lmgym.errors import one_line

# why a row is rejected, in words that follow a number of rows
NOT_JSON, NOT_CSV, NOT_UTF8 = "not JSON", "not CSV", "not UTF-8"
NOT_AN_OBJECT, NESTED, UNREADABLE = "not an object", "nested too deeply", "unreadable"
NO_VALUE, NO_REPLY, NO_PROMPT = "without a value", "without a reply", "without a prompt"
WRONG_TYPE, OUT_OF_RANGE, UNSUPPORTED = "of the wrong type", "out of range", "with unsupported messages"
WRONG_TURNS, IDENTICAL = "with turns in the wrong order", "with identical replies"
UNFIT = "too long, or refused by the chat template"
DUPLICATE, CONFLICT = "duplicate", "conflicting duplicate"
DUPLICATE_PROMPT, DUPLICATE_REPLY, HELD_OUT = "duplicate prompt", "duplicate reply", "in the evaluation set too"

PLURALS = {
    DUPLICATE: "duplicates",
    CONFLICT: "conflicting duplicates",
    DUPLICATE_PROMPT: "duplicate prompts",
    DUPLICATE_REPLY: "duplicate replies",
}
NOT_NEEDED = frozenset((DUPLICATE_PROMPT, DUPLICATE_REPLY, HELD_OUT))
"""reasons that say nothing bad about a row: it is not needed, and no sign of bad data"""
OF_THE_ROW = frozenset((*PLURALS, HELD_OUT))
"""reasons beside which a field says nothing"""
MOST_REJECTED = 0.05  # of the rows: above it people are warned
SHOWN_REASONS = 6


@dataclass(frozen=True)
class Rejection:
    """A row that is not used: where it is, which field, what was found, and the reason, one of a few."""

    file: str
    line: int
    field: str
    found: str
    reason: str = "unusable"

    def __str__(self) -> str:
        return f"{one_line(self.file)}, line {self.line}, {one_line(self.field, 80)}: {one_line(self.found, 400)}"


class RowError(Exception):
    """A fault of one row: the field, what was found, and the reason."""

    def __init__(self, field: str, found: str, reason: str = "unusable") -> None:
        super().__init__(field, found, reason)
        self.field, self.found, self.reason = field, found, reason

    def at(self, file: str, line: int) -> Rejection:
        """The rejection of the row there."""
        return Rejection(file, line, self.field, self.found, self.reason)


@dataclass(frozen=True)
class Tally:
    """How many of `rows` rows were rejected, and how many are not needed, by reason, the most frequent first."""

    rows: int
    rejected: dict[str, int]
    not_needed: dict[str, int]
    first: Rejection | None
    """of those rejected"""

    @property
    def is_alarming(self) -> bool:
        """Whether people should look at the data before they train on it."""
        return sum(self.rejected.values()) > MOST_REJECTED * self.rows

    @property
    def counts(self) -> dict[str, int | dict[str, int]]:
        """What is recorded."""
        counts: dict[str, int | dict[str, int]] = {"rejected_rows": sum(self.rejected.values())}
        if self.rejected:
            counts["rejected_by_reason"] = self.rejected
        if self.not_needed:
            counts["not_needed_by_reason"] = self.not_needed
        return counts

    @property
    def reasons(self) -> str:
        """Why rows are rejected, with how many are for each reason."""
        return _in_words(self.rejected)

    @property
    def line(self) -> str:
        """`121 of 201 rows rejected: 98 duplicates, 20 without a reply (field chosen), 3 not JSON`."""
        said = f"{sum(self.rejected.values()):,} of {self.rows:,} rows rejected"
        if self.rejected:
            said += f": {self.reasons}"
        return f"{said}; not needed: {_in_words(self.not_needed)}" if self.not_needed else said

    @property
    def warning(self) -> str:
        """One line where too many rows were rejected, else empty."""
        if not self.is_alarming:
            return ""
        share = sum(self.rejected.values()) / max(1, self.rows)
        return (
            f"warning: {share:.1%} of the rows are rejected; the first: {self.first}; check the data (rejected.jsonl "
            "in a run's folder lists every row)"
        )


def tally(rejections: Iterable[Rejection], rows: int) -> Tally:
    """Rejections by reason; a row that is rejected more than once counts once, with its first reason."""
    first: dict[tuple[str, int], Rejection] = {}
    for rejection in rejections:
        first.setdefault((rejection.file, rejection.line), rejection)
    bad = [one for one in first.values() if one.reason not in NOT_NEEDED]
    others = [one for one in first.values() if one.reason in NOT_NEEDED]
    return Tally(max(rows, len(first)), _by_reason(bad), _by_reason(others), bad[0] if bad else None)


def _by_reason(rejections: Sequence[Rejection]) -> dict[str, int]:
    named = Counter(
        one.reason
        if one.reason in OF_THE_ROW or one.field == "(row)"
        else f"{one.reason} (field {one_line(one.field, 60)})"
        for one in rejections
    )
    return dict(named.most_common())


def _in_words(counts: dict[str, int]) -> str:
    shown = list(counts.items())[:SHOWN_REASONS]
    words = [f"{n:,} {PLURALS.get(reason, reason) if n > 1 else reason}" for reason, n in shown]
    if rest := sum(counts.values()) - sum(n for _, n in shown):
        words.append(f"{rest:,} for {len(counts) - len(shown)} other reasons")
    return ", ".join(words)


def write_rejections(path: Path, rejections: Sequence[Rejection]) -> None:
    """One JSON object a row that was not used."""
    # a name or a field out of the data may hold what UTF-8 cannot: it is written escaped
    lines = "".join(json.dumps(asdict(r), ensure_ascii=False) + "\n" for r in rejections)
    path.write_text(lines, encoding="utf-8", errors="backslashreplace")
