"""Prompts out of rows: tasks that episodes begin from, with the other columns. Nothing is dropped silently."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from lmgym.config import PASSAGE, ColumnConfig
from lmgym.data.mixing import DataSet, Part, mix, read_sets, read_weights, set_names, sets_of_rows
from lmgym.data.pairs import read_pair, reads_pair
from lmgym.data.reading import USUAL, Wanted, interpret
from lmgym.data.records import Record
from lmgym.data.rejections import DUPLICATE_PROMPT, NO_PROMPT, UNFIT, Rejection, RowError
from lmgym.data.rows import line_of, prompt_key, read_prompt, read_rows
from lmgym.data.splitting import overlap_notes, split_column, split_rows
from lmgym.errors import InputError, one_line
from lmgym.text import Conversation, has_tools, render_each

Task = Mapping[str, Any]
"""a row of data that an episode begins from"""
RowCheck = Callable[[Sequence[Task]], Sequence[RowError | None]]
"""finds faults of rows, all at once: one a row, or None"""
FORMS = ("prompt", "messages", "text", "input_text", "chosen")
"""columns, in this order, beside those of other tools' formats (lmgym/data/formats.py)"""
REASONS = 3  # that a refusal gives for rows that were rejected


class PromptSettings(Protocol):
    """The source of prompts and the held-out part; see the stage's config."""

    @property
    def prompts(self) -> str: ...
    @property
    def prompt_weights(self) -> str | None: ...
    @property
    def prompt_split(self) -> str: ...
    @property
    def eval_prompts(self) -> str | None: ...
    @property
    def eval_size(self) -> float: ...
    @property
    def split_by(self) -> str: ...


@dataclass(frozen=True)
class Prompts:
    """Tasks to train on and to evaluate on."""

    train: list[Task]
    evaluation: list[Task]
    rejections: list[Rejection]
    rows: int = 0
    """that were read"""
    parts: Sequence[Part] = ()
    """of several data sets, what is drawn of each"""
    reading: Sequence[str] = ()
    """a line on each data set: what its columns are taken for"""

    @property
    def fingerprint(self) -> str:
        """A hash of the prompts in their order, with their columns."""
        digest = hashlib.sha256()
        for side in (self.train, self.evaluation):
            for task in side:
                digest.update(json.dumps(task, default=repr, sort_keys=True).encode())
            digest.update(b"\0")
        return digest.hexdigest()


@dataclass(frozen=True)
class PromptRow:
    """A prompt with its columns."""

    task: Task
    file: str
    line: int
    prompt_key: str
    answers: tuple = ()

    @property
    def conversation(self) -> Conversation | str:
        """The prompt."""
        return self.task["prompt"]


def read_prompts(
    settings: PromptSettings,
    seed: int,
    as_text: bool = False,
    tokenizer: Any = None,
    row_check: RowCheck | None = None,
    columns: ColumnConfig = USUAL,
) -> Prompts:
    """The prompts that the settings name, each once. Raises InputError where there are none, with what was rejected.

    With `as_text` a `prompt` of text stays a text, for rewards that read it; else it is a conversation. A prompt with
    tools that the chat template of a tokenizer, if given, cannot write is rejected, and so are rows in which
    `row_check` finds a fault.
    """
    notes: list[str] = []
    weights = read_weights(settings.prompt_weights, set_names(settings.prompts), "prompt_weights")
    given = as_text, tokenizer, columns, notes
    column = split_column(settings.split_by)
    sets = read_sets(settings.prompts, settings.prompt_split, None, column)
    found, rejections = _read(sets, row_check, *given)
    kept, parts = mix(sets_of_rows(found, rejections, sets, "a prompt"), [*sets], weights, seed)
    rows, read = [found[i] for i in kept], sum(map(len, sets.values()))
    others = read_sets(settings.eval_prompts, "test", None, column) if settings.eval_prompts else {}
    held_out: list[PromptRow] | None = None
    if others:
        held_out, more = _read(others, row_check, *given)
        rejections += more
        read += sum(map(len, others.values()))
    of_all = *sets.values(), *others.values()
    try:
        sides = split_rows(
            rows, held_out, settings.split_by, of_all, settings.eval_size, seed, "prompts", "eval_prompts"
        )
    except InputError as error:
        raise InputError(f"{error}{_reasons(rejections)}") from None
    train, held_out = sides.train, sides.held_out
    rejections += sides.rejections
    notes += [*sides.notes, *overlap_notes(train, held_out, sides.split_by, "prompts")]
    if not train:
        needed = "needed: some that are not evaluated on"
        raise InputError(f"{one_line(settings.prompts)} leaves 0 prompts to train on; {needed}{_reasons(rejections)}")
    return Prompts([row.task for row in train], [row.task for row in held_out], rejections, read, parts, notes)


def _read(
    sets: Mapping[str, DataSet],
    row_check: RowCheck | None,
    as_text: bool,
    tokenizer: Any,
    columns: ColumnConfig,
    notes: list[str],
) -> tuple[list[PromptRow], list[Rejection]]:
    """(rows, rejections) of all data sets."""
    rows, rejections = read_rows_of_prompts(
        *sets.values(), as_text=as_text, tokenizer=tokenizer, columns=columns, notes=notes
    )
    if row_check and rows:
        checked = list(zip(rows, row_check([row.task for row in rows]), strict=True))
        rejections += [fault.at(row.file, row.line) for row, fault in checked if fault]
        rows = [row for row, fault in checked if not fault]
    if not rows:
        raise InputError(f"{one_line(', '.join(sets))} holds no prompts that can be used{_reasons(rejections)}")
    return rows, rejections


def read_rows_of_prompts(
    *sets: Iterable[Record],
    as_text: bool = False,
    tokenizer: Any = None,
    columns: ColumnConfig = USUAL,
    notes: list[str] | None = None,
) -> tuple[list[PromptRow], list[Rejection]]:
    """(each prompt once, rejections) of the rows of all data sets; see `read_prompts`.

    Raises InputError for a set in which no row has a prompt.
    """
    seen: dict[str, PromptRow] = {}

    def read(record: Record) -> PromptRow:
        row = _read_row(record, as_text, tokenizer)
        if row.prompt_key in seen:
            raise RowError("prompt", f"the same prompt as in {line_of(seen[row.prompt_key], row)}", DUPLICATE_PROMPT)
        seen[row.prompt_key] = row
        return row

    wanted = replace(WANTED, as_text=as_text)
    return read_rows(interpret(sets, wanted, columns, notes), read)


def _reasons(rejections: Sequence[Rejection]) -> str:
    """The number of rejected rows, with the first ones of each kind; empty if there are none."""
    kinds: dict[tuple[str, str], Rejection] = {}
    for one in rejections:
        kinds.setdefault((one.field, one.reason), one)
    said = "; ".join(f"line {one.line}: {one_line(one.field, 80)}: {one.found}" for one in [*kinds.values()][:REASONS])
    return f"; rows rejected: {len(rejections):,} ({said})" if rejections else ""


def _form(fields: Mapping[str, Any]) -> str | None:
    return next((name for name in FORMS if fields.get(name) not in (None, "", [])), None)


def _reads(fields: Mapping[str, Any]) -> tuple[str, ...]:
    name = _form(fields)
    if name == "chosen":
        return reads_pair(fields)
    return (*([name] if name else []), "tools")


NEEDED = f"one of {', '.join(FORMS)}; or another format of docs/data_formats.md"
LEFT_OUT = (*FORMS, "rejected")  # what follows the prompt, which the policy is to say
WANTED = Wanted(
    "prompts",
    NEEDED,
    [(form,) for form in FORMS],
    _reads,
    others_go_to="the reward function",
    left_out=LEFT_OUT,
    may_be_answers=True,
)


def _read_row(record: Record, as_text: bool, tokenizer: Any) -> PromptRow:
    name = _form(record.fields)
    if name is None:
        raise RowError("prompt", "missing or empty", NO_PROMPT)
    value = record.fields[name]
    prompt: Conversation | str
    if as_text and isinstance(value, str):
        passage = record.fields.get(PASSAGE)
        prompt = key = f"{value}\n\n{passage}" if isinstance(passage, str) and passage.strip() else value
    else:
        prompt = (
            read_pair(record, soft=True).conversation if name == "chosen" else _unanswered(read_prompt(record, name))
        )
        if not prompt.turns:
            raise RowError(name, "no turn to answer", NO_PROMPT)
        if tokenizer is not None and has_tools(prompt):
            [text] = render_each(tokenizer, [prompt])
            if isinstance(text, InputError):
                raise RowError(name, str(text), UNFIT)
        key = prompt_key(prompt)
    made = {ours for ours, theirs in (record.names or {}).items() if ours != theirs}
    columns = {k: v for k, v in record.fields.items() if k not in LEFT_OUT and k not in made}
    return PromptRow({"prompt": prompt, **columns}, record.file, record.line, key)


def _unanswered(conversation: Conversation) -> Conversation:
    """Without the bot's turns at the end: that is what the policy is to say."""
    turns = conversation.turns
    end = len(turns)
    while end and turns[end - 1].speaker == "bot":
        end -= 1
    return replace(conversation, turns=turns[:end])
