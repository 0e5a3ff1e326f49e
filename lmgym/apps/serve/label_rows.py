"""The pairs of replies that people label: from pairs, lists of replies, and single replies to one prompt.

Design decisions:
- What other commands read as a pair or a ranking is one here. Two columns that are called as replies (response_a,
  response_b) need no verdict, and a list of replies no ranks.
- Single replies to the same conversation, as in the files of a run's `samples/`, form a list.
- Of a list of n replies n - 1 pairs are labelled, which connect all of them in an order drawn by a digest of the texts;
  more pairs, if they are asked for, join replies further apart in it.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from lmgym.config import ColumnConfig
from lmgym.data.formats import renamed
from lmgym.data.json_rows import parse_json
from lmgym.data.mixing import DataSet, set_names
from lmgym.data.pairs import COLUMNS, RANKED, is_pair, read_pair, read_ranked, reads_pair
from lmgym.data.reading import Wanted, interpret
from lmgym.data.records import Record
from lmgym.data.rejections import DUPLICATE, IDENTICAL, NO_REPLY, WRONG_TYPE, Rejection, RowError, tally
from lmgym.data.rows import read_prompt, read_rows
from lmgym.data.sources import find_files
from lmgym.data.verdicts import REPLIES, two_replies
from lmgym.errors import InputError, one_line, shown
from lmgym.text import Conversation, Reply, as_reply, messages, words_of

NEEDED = (
    "two or more replies to a prompt: chosen and rejected, response_a and response_b, a list of replies, or rows of "
    "single replies to the same prompt"
)
PLURALS = {"replies", "candidates", *(f"{word}s" for word in REPLIES)}
FORMS = (COLUMNS, RANKED, ("prompt", "replies"), ("prompt", "completion"), ("messages",), ("input_text", "output_text"))


@dataclass(frozen=True)
class Answered:
    """A reply of a row, with its place."""

    reply: Reply
    file: str
    line: int


@dataclass(frozen=True)
class LabelPair:
    """Two different replies to one conversation, in the order of the rows."""

    conversation: Conversation
    first: Answered
    second: Answered

    @cached_property
    def id(self) -> str:
        """A digest of the texts, the same whichever reply comes first."""
        replies = sorted(words_of(one.reply).strip() for one in (self.first, self.second))
        return _digest(messages(self.conversation), self.conversation.tools, replies)[:24]


@dataclass(frozen=True)
class ToLabel:
    """The pairs of ROWS, and how these were read."""

    pairs: list[LabelPair]
    notes: list[str]
    """lines on the columns that are read, the rows left out, and the pairs"""


def read_label_pairs(source: str, columns: ColumnConfig, pairs_per_prompt: int | None = None) -> ToLabel:
    """The pairs of a file, a folder, a hub id, or several of them separated by commas.

    `pairs_per_prompt`: of a list of replies at most so many; None: one fewer than replies. Raises InputError where no
    prompt has two different replies, and as `interpret` does.
    """
    notes: list[str] = []
    sets = [DataSet(name, _split(name), change=_without_verdict) for name in set_names(source)]
    rows, rejections = read_rows(interpret(sets, WANTED, columns, notes), _read_replies)
    count = sum(len(one) for one in sets)
    groups = _grouped(rows)
    pairs, seen = [], dict[str, LabelPair]()
    for conversation, answers in groups:
        by_text: dict[str, Answered] = {}
        for one in answers:
            by_text.setdefault(words_of(one.reply).strip(), one)
        distinct = list(by_text.values())
        if len(distinct) < 2:
            reason, found = NO_REPLY, "the only reply to its prompt; needed: two, as single ones are not graded"
            if len(answers) > 1:
                reason, found = IDENTICAL, f"{len(answers)} equal replies to its prompt"
            rejections += [Rejection(one.file, one.line, "(row)", found, reason) for one in answers]
        for pair in _drawn(conversation, distinct, pairs_per_prompt):
            if pair.id in seen:
                rejections.append(_duplicate(pair, seen[pair.id]))
            else:
                seen[pair.id] = pair
                pairs.append(pair)
    left_out = tally(rejections, count)
    if not pairs:
        first = f"{left_out.line}; the first: {rejections[0]}" if rejections else "it holds 0 rows"
        raise InputError(f"{one_line(source)} has no two replies to compare: {first}; needed: {NEEDED}")
    if rejections:
        notes.append(f"{left_out.line}; the first: {rejections[0]}")
    prompts = len({pair.conversation for pair in pairs})
    of = f"{prompts:,} prompt{'s' * (prompts != 1)}"
    notes.append(f"{len(pairs):,} pair{'s' * (len(pairs) != 1)} to label, of {of}")
    return ToLabel(pairs, notes)


def _reads(fields: Mapping[str, Any]) -> tuple[str, ...]:
    from sft.conversations import reads_chat

    if is_pair(fields):
        return reads_pair(fields)
    if fields.get("replies") is not None:
        return ("prompt", "tools", "replies")
    return tuple({*reads_chat(fields)} - {"label", "kto_tag"})


WANTED = Wanted("replies to compare", NEEDED, FORMS, _reads)


def _split(source: str) -> str:
    """The split to read: train, or where a folder has none, its evaluation files, as those of a run's samples/."""
    try:
        find_files(source, "train")
    except InputError:
        try:
            find_files(source, "test")
        except InputError:
            return "train"  # whose error is the better one
        return "test"
    return "train"


def _without_verdict(record: Record) -> Record:
    """A row under our names of its replies, unless other commands read it as a pair or a ranking."""
    as_read = renamed(record)
    if record.fault or (not as_read.fault and is_pair(as_read.fields)):
        return record
    try:
        if found := two_replies(record.fields):
            sides, replies, asks = found
            rest = {name: value for name, value in asks.items() if name not in sides}
            names = dict(record.names or {}) | dict(zip(COLUMNS, sides, strict=True))
            return replace(record, fields=rest | dict(zip(COLUMNS, replies, strict=True)), names=names)
    except RowError as error:
        return replace(record, fault=error.with_traceback(None))
    if (column := _reply_list(record.fields)) and column != "replies":
        fields = {"replies" if name == column else name: value for name, value in record.fields.items()}
        return replace(record, fields=fields, names=dict(record.names or {}) | {"replies": column})
    return record


def _reply_list(fields: Mapping[str, Any]) -> str | None:
    """The column that lists two or more replies: its name has the plural of a word for a reply."""
    for name, value in fields.items():
        words = re.findall(r"[^\W\d_]+", str(name).lower())
        if PLURALS & {*words} and isinstance(found := _listed(value), list) and len(found) > 1:
            return name
    return None


def _listed(value: Any) -> Any:
    """The list in a cell, which a CSV holds as JSON; anything else as it is."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        with suppress(RowError):
            return parse_json(value, "replies")
    return value


Offer = tuple[Conversation, list[Answered], bool]
"""a conversation, its replies in one row, and whether the row is a single reply, which others may join"""


def _read_replies(record: Record) -> Offer:
    """The replies of a row. Raises RowError for a row without any that can be used."""
    from sft.conversations import read_chat

    fields = record.fields
    if fields.get("chosen") is not None and fields.get("rejected") is not None:
        pair = read_pair(record, soft=True)
        return pair.conversation, _answers(record, (pair.chosen, pair.rejected)), False
    if fields.get("ranks") is not None:
        return read_prompt(record, "prompt"), _answers(record, read_ranked(record)[0]), False
    if fields.get("replies") is not None:
        return read_prompt(record, "prompt"), _answers(record, _texts(fields["replies"])), False
    liked = {name: value for name, value in fields.items() if name not in ("label", "kto_tag")}
    chat = read_chat(replace(record, fields=liked))
    if chat.text:
        raise RowError("text", "plain text; needed: a conversation that ends in a reply", NO_REPLY)
    return chat.prompt, _answers(record, [as_reply(chat.conversation.turns[-1])]), True


def _answers(record: Record, replies: Sequence[Reply]) -> list[Answered]:
    return [Answered(reply, record.file, record.line) for reply in replies]


def _texts(value: Any) -> list[str]:
    """The texts of a list of replies, which may be objects with a text. Raises RowError for anything else."""
    if not isinstance(value := _listed(value), list):
        raise RowError("replies", f"{shown(value)}; needed: a list of replies", WRONG_TYPE)
    keys = ("text", "content", "reply", "response", "answer", "completion")
    found = []
    for one in value:
        text = next((one[key] for key in keys if key in one), None) if isinstance(one, dict) else one
        if not isinstance(text, str) or not text.strip():
            raise RowError("replies", f"{shown(one)}; needed: text", NO_REPLY)
        found.append(text.strip())
    return found


def _grouped(rows: Sequence[Offer]) -> list[tuple[Conversation, list[Answered]]]:
    """Conversations with their replies in the order of the rows; single replies to one conversation are together."""
    groups: list[tuple[Conversation, list[Answered]]] = []
    singles: dict[Conversation, list[Answered]] = {}
    for conversation, answers, is_single in rows:
        if is_single and conversation in singles:
            singles[conversation] += answers
            continue
        groups.append((conversation, list(answers)))
        if is_single:
            singles[conversation] = groups[-1][1]
    return groups


def _drawn(conversation: Conversation, answers: Sequence[Answered], most: int | None) -> list[LabelPair]:
    """Pairs of different replies to a conversation: first those that connect all."""
    order = sorted(answers, key=lambda one: _digest(messages(conversation), words_of(one.reply)))
    count = len(order)
    places = {id(one): place for place, one in enumerate(answers)}
    pairs = []
    for distance in range(1, count):
        for one, other in zip(order, order[distance:], strict=False):
            first, second = sorted((one, other), key=lambda answer: places[id(answer)])
            pairs.append(LabelPair(conversation, first, second))
    return pairs[: count - 1 if most is None else most]


def _duplicate(pair: LabelPair, earlier: LabelPair) -> Rejection:
    of = f"line {earlier.first.line} of {one_line(Path(earlier.first.file).name, 80)}"
    return Rejection(pair.first.file, pair.first.line, "(row)", f"the replies of {of}", DUPLICATE)


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode("utf-8", "backslashreplace")).hexdigest()
