"""Rows of a dataset: checked, deduplicated and split by prompt. Rows left out are recorded, never silently dropped."""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from lmgym.data.formats import renamed
from lmgym.data.json_rows import refuse_unusable
from lmgym.data.records import Record, cell_fault
from lmgym.data.rejections import HELD_OUT, NO_VALUE, UNSUPPORTED, WRONG_TYPE, Rejection, RowError
from lmgym.errors import InputError, one_line, shown
from lmgym.text import Conversation, from_messages, from_transcript
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
    """(`read` of each record under our names, a rejection for each record that it raises an exception for).

    An InputError is not caught: it concerns more than one row.
    """
    rows, rejections = [], []
    for record in map(renamed, records):
        try:
            if record.fault:
                raise record.fault
            refuse_unusable(record.fields)
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
    """Text or messages as a conversation, with the `tools` of its row. Raises RowError for anything else."""
    if isinstance(value, str):
        conversation = from_transcript(value)
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
    groups: dict[str, list[P]] = {}
    for pair in pairs:
        groups.setdefault(pair.prompt_key, []).append(pair)
    order = sorted(groups, key=lambda key: hashlib.sha256(f"{seed}\0{key}".encode()).digest())
    chosen: set[str] = set()
    count = 0
    for key in order:
        if count >= wanted:
            break
        chosen.add(key)
        count += len(groups[key])
    if count == len(pairs) and wanted:
        raise InputError(
            f"the {len(pairs)} {noun} have {len(groups)} prompt(s): no split by prompt leaves both sides any; "
            "add rows of other prompts, or evaluate on others by --eval_dataset"
        )
    return [p for p in pairs if p.prompt_key not in chosen], [p for p in pairs if p.prompt_key in chosen]


def without_prompts(pairs: Sequence[P], held_out: Sequence[P]) -> tuple[list[P], list[Rejection]]:
    """(pairs whose prompt does not occur in `held_out`, rejections of the others)."""
    keys = {pair.prompt_key for pair in held_out}
    kept = [pair for pair in pairs if pair.prompt_key not in keys]
    found = "is in the evaluation set too"
    leaks = [Rejection(p.file, p.line, "prompt", found, HELD_OUT) for p in pairs if p.prompt_key in keys]
    return kept, leaks


def fingerprint(*sides: Sequence[Prompted]) -> str:
    """sha256 over the rows of training and evaluation, in order."""
    digest = hashlib.sha256()
    for side in sides:
        for row in side:
            digest.update(json.dumps([row.prompt_key, *row.answers]).encode())
        digest.update(b"\0")
    return digest.hexdigest()
