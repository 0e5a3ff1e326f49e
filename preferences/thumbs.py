"""Single replies that people liked or disliked, read from rows.

Accepted rows: `prompt`, `completion` and `label` (TRL's unpaired preferences); logs of `input_text`, `output_text` and
`accepted`, where a reply that was kept is liked and one that was retried is disliked (or `label` in its place); and
pairs, each of which is a liked and a disliked reply.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from lmgym.data.formats import recognise
from lmgym.data.pairs import COLUMNS, RANKED, only_reply, read_pair
from lmgym.data.records import Record
from lmgym.data.rejections import NO_PROMPT, NO_REPLY, NO_VALUE, WRONG_TYPE, Rejection, RowError
from lmgym.data.rows import prompt_key, read_conversation, read_rows, require_value
from lmgym.errors import shown
from lmgym.text import Conversation

UNPAIRED = ("prompt", "completion")
LOGGED = ("input_text", "output_text")
LABELS = ("label", "accepted")
FORMS = (*((*form, label) for form in (UNPAIRED, LOGGED) for label in LABELS), COLUMNS, RANKED)
WORDS = {"true": True, "false": False, "1": True, "0": False}


@dataclass(frozen=True)
class Thumb:
    """A reply to a conversation, liked or disliked."""

    conversation: Conversation
    reply: str
    liked: bool
    file: str = ""
    line: int = 0
    field: str = "completion"
    """column of the reply"""

    @property
    def prompt_key(self) -> str:
        """Equal for prompts that differ only in case and white space, so that a split keeps them together."""
        return prompt_key(self.conversation)

    @property
    def answers(self) -> tuple:
        """The reply and its label."""
        return self.reply, self.liked


def validate(*sets: Sequence[Record]) -> tuple[list[Thumb], list[Rejection]]:
    """(thumbs, rejections) of all data sets: equal rows are several opinions, and all are used.

    Raises InputError for a set in which no row has the needed columns.
    """
    needed = (
        "prompt, completion and label; or input_text, output_text and accepted (or label); or pairs, of chosen and "
        "rejected"
    )
    thumbs, rejections = read_rows(recognise(sets, FORMS, "replies with thumbs", needed), read_thumbs)
    return list(chain.from_iterable(thumbs)), rejections


def read_thumbs(record: Record) -> tuple[Thumb, ...]:
    """The thumbs of a row: one, or two of a pair. Raises RowError for a row that cannot be used."""
    if any(record.fields.get(name) is not None for name in ("chosen", "ranks")):
        pair = read_pair(record)
        sides = (pair.chosen, True, "chosen"), (pair.rejected, False, "rejected")
        return tuple(Thumb(pair.conversation, reply, up, record.file, record.line, name) for reply, up, name in sides)
    asked, answered = LOGGED if LOGGED[0] in record.fields else UNPAIRED
    tools = record.fields.get("tools")
    conversation = read_conversation(require_value(record, asked, NO_PROMPT), asked, tools)
    if not conversation.turns:
        raise RowError(asked, "no turn before the reply", NO_PROMPT)
    value = require_value(record, answered, NO_REPLY)
    reply = only_reply(value, read_conversation(value, answered, tools), conversation, answered)
    if not reply:
        raise RowError(answered, "an empty reply", NO_REPLY)
    return (Thumb(conversation, reply, _label(record), record.file, record.line, answered),)


def _label(record: Record) -> bool:
    """True for a reply that was liked."""
    name = next((name for name in LABELS if record.fields.get(name) is not None), None)
    if name is None:
        there = next((name for name in LABELS if name in record.fields), LABELS[0])
        raise RowError(there, "null" if there in record.fields else "missing", NO_VALUE)
    value: Any = record.fields[name]
    if isinstance(value, str):  # a CSV's is text
        value = WORDS.get(value.strip().lower(), value)
    if value not in (0, 1) or not isinstance(value, bool | int | float):
        raise RowError(name, f"{shown(value)}; needed: true or false, or 1 or 0", WRONG_TYPE)
    return bool(value)
