"""Rows of a dataset, read and checked one by one. Rows left out are recorded, never silently dropped."""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from lmgym.config import PASSAGE
from lmgym.data.asked import read_text
from lmgym.data.records import Record, cell_fault
from lmgym.data.rejections import (
    CONFLICTING_SYSTEM,
    NO_PROMPT,
    NO_VALUE,
    UNSUPPORTED,
    WRONG_TYPE,
    Rejection,
    RowError,
)
from lmgym.data.unread import as_text
from lmgym.errors import InputError, one_line, shown
from lmgym.messages import from_messages
from lmgym.text import Conversation, Turn
from lmgym.tool_calls import read_tools


def prompt_key(conversation: Conversation) -> str:
    """A conversation's text, the same for conversations that differ only in case and white space."""
    turns = [conversation.persona, conversation.tools]
    turns += [f"{t.speaker} {t.text} {t.extra}" for t in conversation.turns]
    return " ".join(" ".join(turns).lower().split())


class Prompted(Protocol):
    """A row that answers a prompt."""

    @property
    def file(self) -> str:
        """Its file."""
        ...

    @property
    def line(self) -> int:
        """Its line, from 1."""
        ...

    @property
    def conversation(self) -> Conversation | str:
        """The conversation that it answers, and perhaps its answer; a text where it is one."""
        ...

    @property
    def prompt_key(self) -> str:
        """Equal for prompts that must be on one side of a split."""
        ...

    @property
    def answers(self) -> tuple:
        """The replies and their labels, serialisable as JSON."""
        ...


P = TypeVar("P", bound=Prompted)
T = TypeVar("T")


def read_rows(records: Iterable[Record], read: Callable[[Record], T]) -> tuple[list[T], list[Rejection]]:
    """(`read` of each record, a rejection for each record that it raises an exception for).

    An InputError is not caught: it concerns more than one row.
    """
    rows, rejections = [], []
    for record in records:
        try:
            if record.fault:
                raise record.fault
            rows.append(read(record))
        except RowError as error:
            rejections.append(
                Rejection(record.file, record.line, record.column(error.field), error.found, error.reason)
            )
        except (InputError, MemoryError):
            raise
        except Exception as error:  # a row may hold anything, and must not stop the others
            rejections.append(cell_fault("(row)", error).at(record.file, record.line))
    return rows, rejections


def read_conversation(value: Any, name: str, tools: Any = None) -> Conversation:
    """Messages, a transcript that was read (a Conversation), or a plain text as a conversation, with its `tools`.

    A plain text is one turn of the user. Raises RowError for anything else.
    """
    if isinstance(value, Conversation):
        conversation = value
    elif isinstance(value, str):
        conversation = Conversation((Turn("user", value.strip()),), is_text=True)
    elif isinstance(value, list):
        try:
            conversation = from_messages(value)
        except ValueError as error:
            raise RowError(name, str(error), UNSUPPORTED) from None
    else:
        raise RowError(name, f"{shown(value)}; needed: text or messages", NO_VALUE if value is None else WRONG_TYPE)
    try:
        return replace(conversation, tools=read_tools(tools)) if tools else conversation
    except ValueError as error:
        raise RowError("tools", str(error), UNSUPPORTED) from None


def read_prompt(record: Record, name: str) -> Conversation:
    """The conversation in a column, with the tools, the system message and the passage of its row."""
    return in_row(record, read_conversation(record.fields.get(name), name, record.fields.get("tools")), name)


def in_row(record: Record, conversation: Conversation, name: str) -> Conversation:
    """A conversation with the system message and the passage of its row. Raises RowError where it has another one."""
    system, passage = read_text(record.fields, "system"), as_text(record.fields.get(PASSAGE)).strip()
    if system and conversation.persona not in ("", system):
        found = f"a system message in {name}, and another one in the column system"
        raise RowError(name, f"{found}; needed: one", CONFLICTING_SYSTEM)
    turns = conversation.turns
    asked = [i for i, turn in enumerate(turns) if turn.speaker == "user"]
    if passage and not asked:
        raise RowError(name, "no turn of a user to put the passage below", NO_PROMPT)
    if passage:
        asking = replace(turns[asked[-1]], text=f"{turns[asked[-1]].text}\n\n{passage}".strip())
        turns = (*turns[: asked[-1]], asking, *turns[asked[-1] + 1 :])
    return replace(conversation, turns=turns, persona=system or conversation.persona)


def require_value(record: Record, name: str, reason: str = NO_VALUE) -> Any:
    """A field of a row. Raises RowError if it is missing, null or empty."""
    value = record.fields.get(name)
    if value is None:
        raise RowError(name, "null" if name in record.fields else "missing", reason)
    if value in ("", []):
        raise RowError(name, "empty", reason)
    return value


def line_of(row: "Prompted", other: "Prompted") -> str:
    """The line of a row for a message on another row, with its file if that differs."""
    return f"line {row.line}" if row.file == other.file else f"line {row.line} of {one_line(Path(row.file).name, 80)}"


def whole_number(value: Any) -> int | None:
    """An integer, also as a float (from a Parquet column of mixed numbers); None for anything else."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def number_of(value: Any) -> float:
    """A number, also as the text of a CSV; NaN for anything else."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def fingerprint(*sides: Sequence[Prompted]) -> str:
    """sha256 over the rows of training and evaluation, in order."""
    digest = hashlib.sha256()
    for side in sides:
        for row in side:
            digest.update(json.dumps([row.prompt_key, *row.answers]).encode())
        digest.update(b"\0")
    return digest.hexdigest()
