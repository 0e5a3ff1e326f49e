"""Preference pairs from rows.

Accepted rows: `prompt/chosen/rejected` and `chosen/rejected`, as strings or as messages (TRL's standard and
conversational types), with an optional number `margin`; hh transcripts ("\\n\\nHuman:"/"\\n\\nAssistant:") and flat
ones ("User:"/"Bot:"). Without a prompt column, the prompt is the common beginning of both sides.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lmgym.data.records import Record
from lmgym.data.rejections import (
    CONFLICT,
    DUPLICATE,
    IDENTICAL,
    NO_PROMPT,
    NO_REPLY,
    OUT_OF_RANGE,
    WRONG_TURNS,
    Rejection,
    RowError,
)
from lmgym.data.rows import prompt_key, read_conversation, read_rows, require_some_columns, require_value
from lmgym.errors import listed, shown
from lmgym.text import Conversation

COLUMNS = ("chosen", "rejected")
MOST_MARGIN = 10_000  # the difference of two scores: no reward model's head reaches it


@dataclass(frozen=True)
class Pair:
    """Two replies to one conversation, the preferred one and the other."""

    conversation: Conversation
    chosen: str
    rejected: str
    margin: float = 0.0
    file: str = ""
    line: int = 0

    @property
    def prompt_key(self) -> str:
        """Equal for prompts that differ only in case and white space, so that a split keeps them together."""
        return prompt_key(self.conversation)

    @property
    def answers(self) -> tuple[str, str, float]:
        """Both replies and the margin."""
        return self.chosen, self.rejected, self.margin


def validate(records: Sequence[Record]) -> tuple[list[Pair], list[Rejection]]:
    """(pairs, rejections) of all records. Raises InputError if no row has the needed columns."""
    needed = "chosen and rejected, and optionally prompt and margin (rename yours to these)"
    require_some_columns(records, COLUMNS, "pairs", needed)
    seen: dict[tuple, int] = {}

    def read(record: Record) -> Pair:
        pair = read_pair(record)
        _refuse_duplicate(pair, seen)
        return pair

    return read_rows(records, read)


def read_pair(record: Record) -> Pair:
    """The pair of a row. Raises RowError for a row that cannot be used."""
    chosen, rejected = (read_conversation(require_value(record, name, NO_REPLY), name) for name in COLUMNS)
    if record.fields.get("prompt") is None:
        conversation, replies = _split_prompt(chosen, rejected)
    else:
        conversation = read_conversation(record.fields["prompt"], "prompt")
        replies = (
            _only_reply(record.fields["chosen"], chosen, conversation, "chosen"),
            _only_reply(record.fields["rejected"], rejected, conversation, "rejected"),
        )
    if not conversation.turns:
        raise RowError("prompt", "no turn before the reply", NO_PROMPT)
    for name, reply in zip(COLUMNS, replies, strict=True):
        if not reply.strip():
            raise RowError(name, "an empty reply", NO_REPLY)
    if replies[0].strip() == replies[1].strip():
        raise RowError("rejected", "identical to chosen", IDENTICAL)
    return Pair(conversation, *replies, _margin(record.fields.get("margin")), record.file, record.line)


def _only_reply(value: Any, side: Conversation, prompt: Conversation, name: str) -> str:
    """The reply of a row with a prompt column: plain text, one message, or the prompt's messages and one more."""
    if isinstance(value, str):
        return value.strip()
    if not side.turns:
        raise RowError(name, "a system message alone; needed: a reply", NO_REPLY)
    last = side.turns[-1]
    if side.turns[:-1] == prompt.turns and last.speaker == "bot" and side.persona in ("", prompt.persona):
        return last.text
    if len(side.turns) != 1 or last.speaker != "bot" or side.persona:
        roles = listed(message["role"] for message in value)
        raise RowError(name, f"messages by {roles}; needed: one assistant message beside a prompt", WRONG_TURNS)
    return last.text


def _split_prompt(chosen: Conversation, rejected: Conversation) -> tuple[Conversation, tuple[str, str]]:
    """(common beginning of both sides, the last bot turn of each)."""
    if chosen == rejected:
        raise RowError("rejected", "identical to chosen", IDENTICAL)
    both = zip(chosen.turns, rejected.turns, strict=False)
    shared = next((i for i, (a, b) in enumerate(both) if a != b), min(len(chosen.turns), len(rejected.turns)))
    for name, side in zip(COLUMNS, (chosen, rejected), strict=True):
        rest = side.turns[shared:]
        if not rest:
            raise RowError(name, "an empty reply", NO_REPLY)
        if len(rest) != 1 or rest[0].speaker != "bot":
            speakers = listed(turn.speaker for turn in rest)
            found = f"after the {shared} turns that both share: {speakers}; needed: one bot turn"
            raise RowError(name, found, WRONG_TURNS)
    if chosen.persona != rejected.persona:
        raise RowError("rejected", "another persona (system message) than chosen's", WRONG_TURNS)
    conversation = Conversation(chosen.turns[:shared], chosen.persona)
    return conversation, (chosen.turns[shared].text, rejected.turns[shared].text)


def _margin(value: Any) -> float:
    if value is None:
        return 0.0
    try:  # a CSV's numbers are text
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not abs(number) <= MOST_MARGIN:
        raise RowError("margin", f"{shown(value)}; needed: a number of at most {MOST_MARGIN:,}", OUT_OF_RANGE)
    return number


def _refuse_duplicate(pair: Pair, seen: dict) -> None:
    key = (pair.conversation, pair.chosen, pair.rejected)
    reverse = (pair.conversation, pair.rejected, pair.chosen)
    if key in seen:
        raise RowError("(row)", f"duplicate of line {seen[key]}", DUPLICATE)
    if reverse in seen:
        found = f"conflicting duplicate: line {seen[reverse]} prefers the other reply"
        raise RowError("(row)", found, CONFLICT)
    seen[key] = pair.line
