"""Preference pairs from rows.

Accepted rows: `prompt/chosen/rejected` and `chosen/rejected`, as strings or as messages (TRL's standard and
conversational types), with an optional number `margin`; hh transcripts ("\\n\\nHuman:"/"\\n\\nAssistant:") and flat
ones ("User:"/"Bot:"). Without a prompt column, the prompt is the common beginning of both sides.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lmgym.data.formats import recognise
from lmgym.data.json_rows import parse_json, refuse_unusable_value
from lmgym.data.records import Record
from lmgym.data.rejections import (
    CONFLICT,
    DUPLICATE,
    IDENTICAL,
    NO_PROMPT,
    NO_REPLY,
    OUT_OF_RANGE,
    TIED,
    UNSUPPORTED,
    WRONG_TURNS,
    WRONG_TYPE,
    Rejection,
    RowError,
)
from lmgym.data.rows import line_of, prompt_key, read_conversation, read_rows, require_value, whole_number
from lmgym.errors import listed, shown
from lmgym.text import Conversation, Turn

COLUMNS = ("chosen", "rejected")
RANKED = ("replies", "ranks")
MOST_RANK = 1_000_000
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
    preference: float = 1.0
    """the probability that the chosen reply is the better one"""

    @property
    def prompt_key(self) -> str:
        """Equal for prompts that differ only in case and white space, so that a split keeps them together."""
        return prompt_key(self.conversation)

    @property
    def answers(self) -> tuple:
        """Both replies, the margin, and the preference if it is not certain."""
        return self.chosen, self.rejected, self.margin, *([self.preference] if self.preference != 1 else [])


def validate(*sets: Sequence[Record], soft: bool = False) -> tuple[list[Pair], list[Rejection]]:
    """(pairs, rejections) of all data sets; with `soft`, the `preference` of rows that have one is read.

    Raises InputError for a set in which no row has the needed columns.
    """
    needed = (
        "chosen and rejected, and optionally prompt and margin; or replies and ranks; or UltraFeedback's instruction "
        "and completions"
    )
    records = recognise(sets, (COLUMNS, RANKED), "pairs", needed)
    seen: dict[tuple, Pair] = {}

    def read(record: Record) -> Pair:
        pair = read_pair(record)
        if soft:
            pair = replace(pair, preference=_preference(record.fields.get("preference")))
        _refuse_duplicate(pair, seen)
        return pair

    return read_rows(records, read)


def read_pair(record: Record) -> Pair:
    """The pair of a row. Raises RowError for a row that cannot be used."""
    if record.fields.get("chosen") is None and record.fields.get("ranks") is not None:
        conversation, replies = _best_and_worst(record)
    else:
        conversation, replies = _read_sides(record)
    if not conversation.turns:
        raise RowError("prompt", "no turn before the reply", NO_PROMPT)
    for name, reply in zip(COLUMNS, replies, strict=True):
        if not reply.strip():
            raise RowError(name, "an empty reply", NO_REPLY)
    if replies[0].strip() == replies[1].strip():
        raise RowError("rejected", "identical to chosen", IDENTICAL)
    return Pair(conversation, *replies, _margin(record.fields.get("margin")), record.file, record.line)


def _read_sides(record: Record) -> tuple[Conversation, tuple[str, str]]:
    """(conversation, replies) of a row with chosen and rejected."""
    fields, tools = record.fields, record.fields.get("tools")
    chosen, rejected = (read_conversation(require_value(record, name, NO_REPLY), name, tools) for name in COLUMNS)
    if fields.get("prompt") is None:
        return _split_prompt(chosen, rejected)
    conversation = read_conversation(fields["prompt"], "prompt", tools)
    return conversation, (
        only_reply(fields["chosen"], chosen, conversation, "chosen"),
        only_reply(fields["rejected"], rejected, conversation, "rejected"),
    )


def _best_and_worst(record: Record) -> tuple[Conversation, tuple[str, str]]:
    """(conversation, the first of the best replies and the first of the worst)."""
    replies, ranks = read_ranked(record)
    if len(set(ranks)) == 1:
        raise RowError("ranks", f"all {len(ranks)} replies tied; needed: one that is better than another", TIED)
    conversation = read_conversation(record.fields.get("prompt"), "prompt", record.fields.get("tools"))
    return conversation, (replies[ranks.index(min(ranks))], replies[ranks.index(max(ranks))])


def read_ranked(record: Record) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """(replies, ranks) of a row with lists of both, 1 the best. Raises RowError for fewer than two replies."""
    replies, ranks = (_read_list(record, name) for name in RANKED)
    if len(replies) < 2:
        raise RowError("replies", f"{len(replies)} of them; needed: at least 2", NO_REPLY)
    if len(replies) != len(ranks):
        raise RowError("ranks", f"{len(ranks)} of them for {len(replies)} replies", WRONG_TYPE)
    for reply in replies:
        if not isinstance(reply, str) or not reply.strip():
            raise RowError("replies", f"{shown(reply)}; needed: text", NO_REPLY)
    whole = []
    for rank in ranks:
        number = whole_number(rank)
        if number is None or not 1 <= number <= MOST_RANK:
            raise RowError("ranks", f"{shown(rank)}; needed: integers, 1 the best", OUT_OF_RANGE)
        whole.append(number)
    return tuple(reply.strip() for reply in replies), tuple(whole)


def _read_list(record: Record, name: str) -> list:
    value = require_value(record, name)
    if isinstance(value, str):  # a CSV's list comes as JSON
        value = parse_json(value, name)
        refuse_unusable_value(value, name)
    if not isinstance(value, list):
        raise RowError(name, f"{shown(value)}; needed: a list", WRONG_TYPE)
    return value


def only_reply(value: Any, side: Conversation, prompt: Conversation, name: str) -> str:
    """The reply of a row with a prompt column: plain text, one message, or the prompt's messages and one more."""
    if isinstance(value, str):
        return value.strip()
    if not side.turns:
        raise RowError(name, "a system message alone; needed: a reply", NO_REPLY)
    last = side.turns[-1]
    _refuse_calls(last, name)
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
        _refuse_calls(rest[0], name)
    if chosen.persona != rejected.persona:
        raise RowError("rejected", "another persona (system message) than chosen's", WRONG_TURNS)
    conversation = replace(chosen, turns=chosen.turns[:shared])
    return conversation, (chosen.turns[shared].text, rejected.turns[shared].text)


def _refuse_calls(reply: Turn, name: str) -> None:
    if reply.extra:
        raise RowError(name, "a reply that calls tools, which no scorer reads; needed: a reply of text", UNSUPPORTED)


def _margin(value: Any) -> float:
    number = 0.0 if value is None else _number(value)
    if not abs(number) <= MOST_MARGIN:
        raise RowError("margin", f"{shown(value)}; needed: a number of at most {MOST_MARGIN:,}", OUT_OF_RANGE)
    return number


def _preference(value: Any) -> float:
    number = 1.0 if value is None else _number(value)
    if not 0 <= number <= 1:
        needed = "needed: a number from 0 to 1, the probability that the chosen reply is the better one"
        raise RowError("preference", f"{shown(value)}; {needed}", OUT_OF_RANGE)
    return number


def _number(value: Any) -> float:
    """A number, also as the text of a CSV; NaN for anything else."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _refuse_duplicate(pair: Pair, seen: dict[tuple, Pair]) -> None:
    key = (pair.conversation, pair.chosen, pair.rejected)
    reverse = (pair.conversation, pair.rejected, pair.chosen)
    if key in seen:
        raise RowError("(row)", f"duplicate of {line_of(seen[key], pair)}", DUPLICATE)
    if reverse in seen:
        found = f"conflicting duplicate: {line_of(seen[reverse], pair)} prefers the other reply"
        raise RowError("(row)", found, CONFLICT)
    seen[key] = pair
