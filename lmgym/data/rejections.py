"""Rejected rows, with their places and reasons, and counts by reason."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lmgym.errors import bounded, one_line, shown_path

# reasons of rejection, worded to follow a number of rows
NOT_JSON, NOT_CSV, NOT_UTF8 = "not JSON", "not CSV", "not UTF-8"
NOT_AN_OBJECT, NESTED, UNREADABLE = "not an object", "nested too deeply", "unreadable"
NO_VALUE, NO_REPLY, NO_PROMPT = "without a value", "without a reply", "without a prompt"
WRONG_TYPE, OUT_OF_RANGE, UNSUPPORTED = "of the wrong type", "out of range", "with unsupported messages"
WRONG_TURNS, IDENTICAL = "with turns in the wrong order", "with identical replies"
TIED, TIE = "with too many tied ranks", "tied"
CONFLICTING_SYSTEM = "with two system messages"
CONFLICT_OF_LABELS = "with labels that disagree"
UNFIT = "refused by the chat template"
UNJUDGED = "without a verdict of the judge"
TOO_LONG = "too long"
MEDIA = "with images, audio or video"
EARLIER = "with an earlier reply that is left out"
DUPLICATE, CONFLICT = "duplicate", "conflicting duplicate"
DUPLICATE_PROMPT, DUPLICATE_REPLY, HELD_OUT = "duplicate prompt", "duplicate reply", "in the evaluation set too"
NOT_LIKED = "with a label that is false"
NOT_LEARNED = "of weight 0"

PLURALS = {
    DUPLICATE: "duplicates",
    CONFLICT: "conflicting duplicates",
    DUPLICATE_PROMPT: "duplicate prompts",
    DUPLICATE_REPLY: "duplicate replies",
}
NOT_NEEDED = frozenset((DUPLICATE_PROMPT, DUPLICATE_REPLY, HELD_OUT, NOT_LIKED, NOT_LEARNED, EARLIER))
"""reasons that are no sign of bad data: the row is not needed"""
OF_THE_ROW = frozenset((*PLURALS, HELD_OUT))
"""reasons that concern the whole row rather than a field"""
MOST_REJECTED = 0.05  # of the rows, without a warning
SHOWN_REASONS = 6


@dataclass(frozen=True)
class Rejection:
    """A row that is not used: its place, the field, what was found, and the reason, one of a few."""

    file: str
    line: int
    field: str
    found: str
    reason: str = "unusable"
    needed: int = 0
    """of a row that is too long, a number of tokens in which it would fit"""

    def __str__(self) -> str:
        return f"{shown_path(self.file)}, line {self.line}, {one_line(self.field, 40)}: {one_line(self.found)}"


class RowError(Exception):
    """A fault of one row: the field, what was found, and the reason."""

    def __init__(self, field: str, found: str, reason: str = "unusable") -> None:
        super().__init__(field, found, reason)
        self.field, self.found, self.reason = field, found, reason

    def at(self, file: str, line: int) -> Rejection:
        """The rejection of the row at this place."""
        return Rejection(file, line, self.field, self.found, self.reason)


@dataclass(frozen=True)
class Tally:
    """Counts of rejected rows and of rows that are not needed, by reason, the most frequent first."""

    rows: int
    rejected: dict[str, int]
    not_needed: dict[str, int]
    first: Rejection | None
    """the first rejected row"""

    @property
    def is_alarming(self) -> bool:
        """True if so many rows are rejected that the data should be checked before training."""
        return self.total > MOST_REJECTED * self.rows

    @property
    def total(self) -> int:
        """Number of rejected rows."""
        return sum(self.rejected.values())

    @property
    def counts(self) -> dict[str, int | dict[str, int]]:
        """Counts for run.json."""
        counts: dict[str, int | dict[str, int]] = {"rejected_rows": self.total}
        if self.rejected:
            counts["rejected_by_reason"] = self.rejected
        if self.not_needed:
            counts["not_needed_by_reason"] = self.not_needed
        return counts

    @property
    def reasons(self) -> str:
        """The reasons of rejected rows, with their counts, in words."""
        return _in_words(self.rejected)

    @property
    def line(self) -> str:
        """`121 of 201 rows rejected: 98 duplicates, 20 without a reply (field chosen), 3 not JSON`."""
        reasons = f": {self.reasons}" if self.rejected else ""
        not_needed = f"; not needed: {_in_words(self.not_needed)}" if self.not_needed else ""
        return f"{self.total:,} of {self.rows:,} rows rejected{reasons}{not_needed}"

    @property
    def in_front(self) -> str:
        """`line` with the first rejection, to begin a message of what the others lack; empty if none is rejected."""
        return f"{self.line}; the first: {self.first}; " if self.first else ""

    @property
    def warning(self) -> str:
        """One line if too many rows are rejected, otherwise empty."""
        if not self.is_alarming:
            return ""
        share = self.total / max(1, self.rows)
        return bounded(
            f"warning: {share:.1%} of the rows are rejected; the first: {self.first}; check the data (rejected.jsonl "
            "in a run's folder lists every row)"
        )


def tally(rejections: Iterable[Rejection], rows: int) -> Tally:
    """Counts of rejections by reason; a row that is rejected twice counts once, for its first reason."""
    first: dict[tuple[str, int], Rejection] = {}
    for rejection in rejections:
        first.setdefault((rejection.file, rejection.line), rejection)
    bad = [rejection for rejection in first.values() if rejection.reason not in NOT_NEEDED]
    others = [rejection for rejection in first.values() if rejection.reason in NOT_NEEDED]
    return Tally(max(rows, len(first)), _by_reason(bad), _by_reason(others), bad[0] if bad else None)


def _by_reason(rejections: Sequence[Rejection]) -> dict[str, int]:
    def name(rejection: Rejection) -> str:
        if rejection.reason in OF_THE_ROW or rejection.field == "(row)":
            return rejection.reason
        return f"{rejection.reason} (field {one_line(rejection.field, 60)})"

    return dict(Counter(map(name, rejections)).most_common())


def _in_words(counts: dict[str, int]) -> str:
    shown = list(counts.items())[:SHOWN_REASONS]
    words = [f"{n:,} {PLURALS.get(reason, reason) if n > 1 else reason}" for reason, n in shown]
    if rest := sum(counts.values()) - sum(n for _, n in shown):
        words.append(f"{rest:,} for {len(counts) - len(shown)} other reasons")
    return ", ".join(words)


def write_rejections(path: Path, rejections: Sequence[Rejection]) -> None:
    """Write one JSON object per rejection. Text that UTF-8 cannot hold is escaped."""
    lines = "".join(json.dumps(asdict(r), ensure_ascii=False) + "\n" for r in rejections)
    path.write_text(lines, encoding="utf-8", errors="backslashreplace")
