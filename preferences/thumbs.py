"""Single replies that people liked or disliked, read from rows.

Accepted rows: `prompt`, `completion` and `label` (TRL's unpaired preferences), or LLaMA-Factory's `kto_tag` in the
place of `label`; `messages` with a label, which is that of the last reply; logs of `input_text`, `output_text` and
`accepted`, where a reply that was kept is liked and one that was retried is disliked (or `label` in its place); and
pairs, each of which is a liked and a disliked reply.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from lmgym.config import ColumnConfig
from lmgym.data.labels import LABELS, label_of
from lmgym.data.pairs import COLUMNS, RANKED, is_pair, only_reply, read_pair, reads_pair
from lmgym.data.reading import USUAL, Wanted, interpret
from lmgym.data.records import Record
from lmgym.data.rejections import NO_PROMPT, NO_REPLY, NO_VALUE, Rejection, RowError
from lmgym.data.rows import prompt_key, read_prompt, read_rows, require_value
from lmgym.text import Conversation, Reply, as_reply, words_of

UNPAIRED = ("prompt", "completion")
LOGGED = ("input_text", "output_text")
WHOLE = ("messages",)
FORMS = (*((*form, label) for form in (UNPAIRED, LOGGED, WHOLE) for label in LABELS), COLUMNS, RANKED)


@dataclass(frozen=True, slots=True)
class Thumb:
    """A reply to a conversation, liked or disliked."""

    conversation: Conversation
    reply: Reply
    liked: bool
    file: str = ""
    line: int = 0
    field: str = "completion"
    """column of the reply"""

    @property
    def prompt_key(self) -> str:
        """Equal for prompts that differ only in case and white space, so that a split keeps them together."""
        return prompt_key(self.conversation)

    def map_replies(self, change: Callable[[Reply], Reply]) -> "Thumb":
        """The row with a changed reply."""
        return replace(self, reply=change(self.reply))

    @property
    def answers(self) -> tuple:
        """The reply and its label."""
        return words_of(self.reply), self.liked


NEEDED = (
    "prompt, completion and label; or messages and label; or input_text, output_text and accepted (or label); or "
    "pairs, of chosen and rejected"
)


def reads_thumbs(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Our names of the columns that `read_thumbs` reads of a row."""
    if is_pair(fields):
        return reads_pair(fields)
    return (*_form(fields), "tools", *LABELS)


def _form(fields: Mapping[str, Any]) -> tuple[str, ...]:
    forms = (LOGGED, UNPAIRED, WHOLE)
    filled = (form for form in forms if fields.get(form[0]) is not None)
    return next(filled, next((form for form in forms if form[0] in fields), UNPAIRED))


WANTED = Wanted("replies with thumbs", NEEDED, FORMS, reads_thumbs)


def validate(
    *sets: Iterable[Record], columns: ColumnConfig = USUAL, notes: list[str] | None = None
) -> tuple[list[Thumb], list[Rejection]]:
    """(thumbs, rejections) of all data sets: equal rows are several opinions, and all are used.

    Raises InputError as `interpret` does, which reads the columns and adds to the notes.
    """
    thumbs, rejections = read_rows(interpret(sets, WANTED, columns, notes), read_thumbs)
    return list(chain.from_iterable(thumbs)), rejections


def read_thumbs(record: Record) -> tuple[Thumb, ...]:
    """The thumbs of a row: one, or two of a pair. Raises RowError for a row that cannot be used."""
    if is_pair(record.fields):
        pair = read_pair(record)
        sides = (pair.chosen, True, "chosen"), (pair.rejected, False, "rejected")
        return tuple(Thumb(pair.conversation, reply, up, record.file, record.line, name) for reply, up, name in sides)
    form = _form(record.fields)
    conversation, reply = _whole(record) if form == WHOLE else _answered(record, *form)
    if not conversation.turns:
        raise RowError(form[0], "no turn before the reply", NO_PROMPT)
    if not words_of(reply):
        raise RowError(form[-1], "an empty reply", NO_REPLY)
    return (Thumb(conversation, reply, _label(record), record.file, record.line, form[-1]),)


def _answered(record: Record, asked: str, answered: str) -> tuple[Conversation, Reply]:
    """(conversation, reply) of a prompt and a reply to it."""
    require_value(record, asked, NO_PROMPT)
    conversation = read_prompt(record, asked)
    return conversation, only_reply(require_value(record, answered, NO_REPLY), conversation, answered)


def _whole(record: Record) -> tuple[Conversation, Reply]:
    """(conversation, last reply) of messages."""
    conversation = read_prompt(record, "messages")
    turns = conversation.turns
    if not turns or turns[-1].speaker != "bot":
        raise RowError("messages", "no reply at its end; needed: an assistant's message", NO_REPLY)
    return replace(conversation, turns=turns[:-1]), as_reply(turns[-1])


def _label(record: Record) -> bool:
    """True for a reply that was liked."""
    if found := label_of(record.fields):
        return found[1]
    there = next((name for name in LABELS if name in record.fields), LABELS[0])
    raise RowError(there, "null" if there in record.fields else "missing", NO_VALUE)
