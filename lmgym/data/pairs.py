"""Preference pairs from rows.

Accepted rows: `prompt/chosen/rejected` and `chosen/rejected`, as text, messages (TRL's standard and conversational
types) or transcripts (hh's, "\\n\\nHuman:"/"\\n\\nAssistant:", and flat ones, "User:"/"Bot:"), with an optional number
`margin`; rankings (`prompt`, `replies`, `ranks`); and those of lmgym/data/formats.py. Without a prompt column, the
prompt is the common beginning of both sides.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lmgym.config import ColumnConfig
from lmgym.data.json_rows import parse_json, refuse_unusable_value
from lmgym.data.rationales import NAMES as RATIONALES
from lmgym.data.reading import USUAL, Wanted, interpret
from lmgym.data.records import Record
from lmgym.data.rejections import (
    CONFLICT,
    DUPLICATE,
    IDENTICAL,
    NO_PROMPT,
    NO_REPLY,
    OUT_OF_RANGE,
    TIE,
    TIED,
    UNSUPPORTED,
    WRONG_TURNS,
    WRONG_TYPE,
    Rejection,
    RowError,
)
from lmgym.data.rows import (
    in_row,
    line_of,
    number_of,
    prompt_key,
    read_conversation,
    read_prompt,
    read_rows,
    require_value,
    whole_number,
)
from lmgym.errors import listed, shown
from lmgym.text import Conversation, Reply, Turn, as_reply, words_of

COLUMNS = ("chosen", "rejected")
RANKED = ("replies", "ranks")
NUMBERS = ("margin", "preference")
"""of a pair, optional"""
MOST_RANK = 1_000_000
MOST_MARGIN = 10_000  # the difference of two scores: no reward model's head reaches it


@dataclass(frozen=True, slots=True)
class Pair:
    """Two replies to one conversation, the preferred one and the other."""

    conversation: Conversation
    chosen: Reply
    rejected: Reply
    margin: float = 0.0
    file: str = ""
    line: int = 0
    preference: float = 1.0
    """the probability that the chosen reply is the better one"""

    @property
    def prompt_key(self) -> str:
        """Equal for prompts that differ only in case and white space, so that a split keeps them together."""
        return prompt_key(self.conversation)

    def map_replies(self, change: Callable[[Reply], Reply]) -> "Pair":
        """The pair with changed replies."""
        return replace(self, chosen=change(self.chosen), rejected=change(self.rejected))

    @property
    def answers(self) -> tuple:
        """Both replies, the margin, and the preference if it is not certain."""
        return (
            words_of(self.chosen),
            words_of(self.rejected),
            self.margin,
            *([self.preference] if self.preference != 1 else []),
        )


NEEDED = (
    "chosen and rejected, and optionally prompt and margin; or replies and ranks; or UltraFeedback's instruction and "
    "completions"
)


def is_pair(fields: Mapping[str, Any]) -> bool:
    """True for a row with a chosen and a rejected reply, or ranked ones."""
    return fields.get("chosen") is not None or fields.get("ranks") is not None


def reads_pair(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Our names of the columns that `read_pair` reads of a row."""
    sides = RANKED if fields.get("chosen") is None and fields.get("ranks") is not None else (*COLUMNS, *NUMBERS)
    return ("prompt", "tools", *sides)


WANTED = Wanted("pairs", NEEDED, (COLUMNS, RANKED), reads_pair, about_replies=RATIONALES)


def validate(
    *sets: Iterable[Record], soft: bool = False, columns: ColumnConfig = USUAL, notes: list[str] | None = None
) -> tuple[list[Pair], list[Rejection]]:
    """(pairs, rejections) of all data sets. With `soft` and soft votes a pair keeps its `preference`; else the reply
    that most prefer is the better one, and a tie is rejected.

    Raises InputError as `interpret` does, which reads the columns and adds to the notes.
    """
    seen: dict[tuple, Pair] = {}

    def read(record: Record) -> Pair:
        pair = read_pair(record, soft and columns.votes == "soft")
        _refuse_duplicate(pair, seen)
        return pair

    return read_rows(interpret(sets, WANTED, columns, notes), read)


def _by_majority(pair: Pair) -> Pair:
    """The pair with the reply that most prefer as the chosen one. Raises RowError for a tie."""
    if pair.preference == 1:
        return pair
    if pair.preference == 0.5:
        raise RowError("preference", "a tie; needed: one reply that is better than the other", TIE)
    if pair.preference > 0.5:
        return replace(pair, preference=1.0)
    return replace(pair, chosen=pair.rejected, rejected=pair.chosen, margin=-pair.margin, preference=1.0)


def read_pair(record: Record, soft: bool = False) -> Pair:
    """The pair of a row; unless `soft`, what most prefer is chosen. Raises RowError for a row that cannot be used."""
    if record.fields.get("chosen") is None and record.fields.get("ranks") is not None:
        conversation, replies = _best_and_worst(record)
    else:
        conversation, replies = _read_sides(record)
    if not conversation.turns:
        raise RowError("prompt", "no turn before the reply", NO_PROMPT)
    for name, reply in zip(COLUMNS, replies, strict=True):
        if not words_of(reply).strip():
            raise RowError(name, "an empty reply", NO_REPLY)
    if words_of(replies[0]).strip() == words_of(replies[1]).strip():
        raise RowError("rejected", "identical to chosen", IDENTICAL)
    margin, preference = _margin(record.fields.get("margin")), _preference(record.fields.get("preference"), soft)
    pair = Pair(conversation, *replies, margin, record.file, record.line, preference)
    return pair if soft else _by_majority(pair)


def _read_sides(record: Record) -> tuple[Conversation, tuple[Reply, Reply]]:
    """(conversation, replies) of a row with chosen and rejected."""
    fields, tools = record.fields, record.fields.get("tools")
    chosen, rejected = (require_value(record, name, NO_REPLY) for name in COLUMNS)
    if fields.get("prompt") in (None, ""):
        conversation, replies = _split_prompt(
            read_conversation(chosen, "chosen", tools), read_conversation(rejected, "rejected", tools)
        )
        return in_row(record, conversation, "chosen"), replies
    asked = read_conversation(fields["prompt"], "prompt", tools)
    replies = only_reply(chosen, asked, "chosen"), only_reply(rejected, asked, "rejected")
    return in_row(record, asked, "prompt"), replies


def _best_and_worst(record: Record) -> tuple[Conversation, tuple[Reply, Reply]]:
    """(conversation, the first of the best replies and the first of the worst)."""
    replies, ranks = read_ranked(record)
    if len(set(ranks)) == 1:
        raise RowError("ranks", f"all {len(ranks)} replies tied; needed: one that is better than another", TIED)
    best, worst = replies[ranks.index(min(ranks))], replies[ranks.index(max(ranks))]
    return read_prompt(record, "prompt"), (best, worst)


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
        if number is None or not 0 <= number <= MOST_RANK:
            raise RowError("ranks", f"{shown(rank)}; needed: integers from 0 or 1, the lowest the best", OUT_OF_RANGE)
        whole.append(number)
    first = 1 - min(whole)  # some count from 0
    return tuple(reply.strip() for reply in replies), tuple(rank + first if first > 0 else rank for rank in whole)


def _read_list(record: Record, name: str) -> list:
    value = require_value(record, name)
    if isinstance(value, str):  # a CSV's list comes as JSON
        value = parse_json(value, name)
        refuse_unusable_value(value, name)
    if not isinstance(value, list):
        raise RowError(name, f"{shown(value)}; needed: a list", WRONG_TYPE)
    return value


def only_reply(value: Any, prompt: Conversation, name: str) -> Reply:
    """The reply of a row with a prompt: plain text; or one message, or the prompt's messages and one more, in messages
    or a transcript.
    """
    if isinstance(value, str):
        return value.strip()
    side = read_conversation(value, name)
    if not side.turns:
        raise RowError(name, "a system message alone; needed: a reply", NO_REPLY)
    last = side.turns[-1]
    _refuse_calls(last, name)
    if side.turns[:-1] == prompt.turns and last.speaker == "bot" and side.persona in ("", prompt.persona):
        return as_reply(last)
    if len(side.turns) != 1 or last.speaker != "bot" or side.persona:
        speakers = listed([*(["system"] if side.persona else []), *(turn.speaker for turn in side.turns)])
        found = f"turns of {speakers}"
        raise RowError(
            name, f"{found}; needed: one turn of the bot beside a prompt, or the prompt's and one", WRONG_TURNS
        )
    return as_reply(last)


def _split_prompt(chosen: Conversation, rejected: Conversation) -> tuple[Conversation, tuple[Reply, Reply]]:
    """(common beginning of both sides, the last bot turn of each)."""
    if chosen == rejected:
        raise RowError("rejected", "identical to chosen", IDENTICAL)
    both = zip(chosen.turns, rejected.turns, strict=False)
    shared = next((i for i, (a, b) in enumerate(both) if a != b), min(len(chosen.turns), len(rejected.turns)))
    for name, side in zip(COLUMNS, (chosen, rejected), strict=True):
        rest = side.turns[shared:]
        if not rest:
            raise RowError(name, "an empty reply", NO_REPLY)
        if len(side.turns) == 1 and rest and rest[0].speaker != "bot":
            needed = "a prompt (--prompt_column names its column), or whole conversations on both sides"
            raise RowError(name, f"a single text, and no prompt in the row; needed: {needed}", WRONG_TURNS)
        if len(rest) != 1 or rest[0].speaker != "bot":
            speakers = listed(turn.speaker for turn in rest)
            found = f"after the {shared} turns that both share: {speakers}; needed: one bot turn"
            raise RowError(name, found, WRONG_TURNS)
        _refuse_calls(rest[0], name)
    if chosen.persona != rejected.persona:
        raise RowError("rejected", "another persona (system message) than chosen's", WRONG_TURNS)
    conversation = replace(chosen, turns=chosen.turns[:shared])
    return conversation, (as_reply(chosen.turns[shared]), as_reply(rejected.turns[shared]))


def _refuse_calls(reply: Turn, name: str) -> None:
    if '"tool_calls"' in reply.extra:
        raise RowError(name, "a reply that calls tools, which no scorer reads; needed: a reply of text", UNSUPPORTED)


def _margin(value: Any) -> float:
    number = 0.0 if value is None else number_of(value)
    if not abs(number) <= MOST_MARGIN:
        raise RowError("margin", f"{shown(value)}; needed: a number of at most {MOST_MARGIN:,}", OUT_OF_RANGE)
    return number


def _preference(value: Any, soft: bool) -> float:
    """The probability that the chosen reply is the better one; where a side is enough, other values say nothing."""
    number = 1.0 if value is None else number_of(value)
    if not 0 <= number <= 1:
        if not soft:
            return 1.0
        needed = "needed: a number from 0 to 1, the probability that the chosen reply is the better one"
        raise RowError("preference", f"{shown(value)}; {needed}", OUT_OF_RANGE)
    return number


def _refuse_duplicate(pair: Pair, seen: dict[tuple, Pair]) -> None:
    key = (pair.conversation, pair.chosen, pair.rejected)
    reverse = (pair.conversation, pair.rejected, pair.chosen)
    if key in seen:
        raise RowError("(row)", f"duplicate of {line_of(seen[key], pair)}", DUPLICATE)
    if reverse in seen:
        found = f"conflicting duplicate: {line_of(seen[reverse], pair)} prefers the other reply"
        raise RowError("(row)", found, CONFLICT)
    seen[key] = pair
