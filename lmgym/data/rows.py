"""Rows of a dataset: checked, deduplicated and split by prompt. Rows left out are recorded, never silently dropped."""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from lmgym.config import PASSAGE
from lmgym.data.records import Record, cell_fault
from lmgym.data.rejections import (
    CONFLICTING_SYSTEM,
    HELD_OUT,
    NO_PROMPT,
    NO_VALUE,
    UNSUPPORTED,
    WRONG_TYPE,
    Rejection,
    RowError,
)
from lmgym.errors import InputError, one_line, shown
from lmgym.text import Conversation, Turn, from_messages
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
        conversation = Conversation((Turn("user", value.strip()),))
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
    system, passage = _text(record, "system"), _text(record, PASSAGE)
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


def _text(record: Record, name: str) -> str:
    """A text, stripped; empty if there is none."""
    value = record.fields.get(name)
    if not isinstance(value, str | None):
        raise RowError(name, f"{shown(value)}; needed: text", WRONG_TYPE)
    return (value or "").strip()


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


def fitting_eval_size(eval_size: float, rows: int, noun: str) -> tuple[float, list[str]]:
    """(the share or number of rows to evaluate on, a note): a tenth of the rows where the setting asks for them all."""
    if eval_size < max(1, rows):
        return eval_size, []
    fitting = max(1, rows // 10)
    return fitting, [
        f"warning: --eval_size {eval_size:g} is all of the {rows:,} {noun} or more: {fitting:,} are evaluated on, a "
        "tenth; --eval_size sets another number, or a share"
    ]


def split_by_prompt(pairs: Sequence[P], eval_size: float, seed: int, noun: str = "pairs") -> tuple[list[P], list[P]]:
    """(train, eval) with no prompt on both sides; `eval_size` is a share below 1 or a number of pairs.

    Prompts are sampled by a seeded hash, so a row's side does not depend on the order of rows. Raises InputError if
    either side would be empty.
    """
    if not 0 <= eval_size < math.inf:
        raise InputError(f"--eval_size {eval_size:g}; needed: a share below 1, or a number of {noun}, of {len(pairs)}")
    wanted = round(eval_size * len(pairs)) if eval_size < 1 else int(eval_size)
    if wanted >= len(pairs):
        most = f"a share below 1, or a number below {len(pairs)}" if len(pairs) > 1 else "more of them, or 0"
        raise InputError(f"--eval_size {eval_size:g} asks for {wanted} of {len(pairs)} {noun}; needed: {most}")
    hashed = (hashlib.sha256(f"{seed}\0{pair.prompt_key}".encode()).digest() for pair in pairs)
    digests = np.frombuffer(b"".join(hashed), dtype=">u8").reshape(-1, 4)
    order = np.lexsort(digests.T[::-1])
    starts = np.concatenate([[True], (digests[order[1:]] != digests[order[:-1]]).any(1)]) if len(order) else order
    prompt = np.cumsum(starts) - 1  # its number, in the order of the hashes
    ends = np.append(np.flatnonzero(starts)[1:], len(order))
    prompts = int(np.searchsorted(ends, wanted)) + 1 if wanted else 0
    if prompts == len(ends) and wanted:
        raise InputError(
            f"the {len(pairs)} {noun} have {len(ends)} prompt(s): no split by prompt leaves both sides any; "
            "add rows of other prompts, or evaluate on others by --eval_dataset"
        )
    held_out = np.zeros(len(pairs), dtype=bool)
    held_out[order[prompt < prompts]] = True
    return [p for p, held in zip(pairs, held_out, strict=True) if not held], [
        p for p, held in zip(pairs, held_out, strict=True) if held
    ]


def without_prompts(pairs: Sequence[P], held_out: Sequence[P]) -> tuple[list[P], list[Rejection]]:
    """(pairs whose prompt does not occur in `held_out`, rejections of the others)."""
    keys = {pair.prompt_key for pair in held_out}
    in_both = [pair.prompt_key in keys for pair in pairs]
    found = "is in the evaluation set too"
    leaks = [
        Rejection(p.file, p.line, "prompt", found, HELD_OUT) for p, both in zip(pairs, in_both, strict=True) if both
    ]
    return [pair for pair, both in zip(pairs, in_both, strict=True) if not both], leaks


def fingerprint(*sides: Sequence[Prompted]) -> str:
    """sha256 over the rows of training and evaluation, in order."""
    digest = hashlib.sha256()
    for side in sides:
        for row in side:
            digest.update(json.dumps([row.prompt_key, *row.answers]).encode())
        digest.update(b"\0")
    return digest.hexdigest()
