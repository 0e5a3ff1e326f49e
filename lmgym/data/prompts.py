"""Prompts out of rows: tasks that episodes begin from, with the other columns. Nothing is dropped silently."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from lmgym.data.formats import recognise
from lmgym.data.mixing import Part, mix, read_sets, read_weights, set_names, sets_of_rows
from lmgym.data.pairs import read_pair
from lmgym.data.records import Record
from lmgym.data.rejections import DUPLICATE_PROMPT, NO_PROMPT, UNFIT, Rejection, RowError
from lmgym.data.rows import line_of, prompt_key, read_conversation, read_rows, split_by_prompt, without_prompts
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
    def eval_prompts(self) -> str | None: ...
    @property
    def eval_size(self) -> float: ...


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


def read_prompts(
    settings: PromptSettings, seed: int, as_text: bool = False, tokenizer: Any = None, row_check: RowCheck | None = None
) -> Prompts:
    """The prompts that the settings name, each once. Raises InputError where there are none, with what was rejected.

    With `as_text` a `prompt` of text stays a text, for rewards that read it; else it is a conversation. A prompt with
    tools that the chat template of a tokenizer, if given, cannot write is rejected, and so are rows in which
    `row_check` finds a fault.
    """
    weights = read_weights(settings.prompt_weights, set_names(settings.prompts), "prompt_weights")
    sets = read_sets(settings.prompts, "train")
    found, rejections = _read(sets, as_text, tokenizer, row_check)
    kept, parts = mix(sets_of_rows(found, rejections, sets, "a prompt"), [*sets], weights, seed)
    rows, read = [found[i] for i in kept], sum(map(len, sets.values()))
    if settings.eval_prompts:
        others = read_sets(settings.eval_prompts, "test")
        held_out, more = _read(others, as_text, tokenizer, row_check)
        train, leaks = without_prompts(rows, held_out)
        rejections += [*more, *leaks]
        read += sum(map(len, others.values()))
    else:
        try:
            train, held_out = split_by_prompt(rows, settings.eval_size, seed, "prompts")
        except InputError as error:
            raise InputError(f"{error}{_reasons(rejections)}") from None
    if not train:
        needed = "needed: some that are not evaluated on"
        raise InputError(f"{one_line(settings.prompts)} leaves 0 prompts to train on; {needed}{_reasons(rejections)}")
    return Prompts([row.task for row in train], [row.task for row in held_out], rejections, read, parts)


def _read(
    sets: Mapping[str, Sequence[Record]], as_text: bool, tokenizer: Any, row_check: RowCheck | None
) -> tuple[list[PromptRow], list[Rejection]]:
    """(rows, rejections) of all data sets."""
    for source, records in sets.items():
        name = one_line(source)
        if not records:
            raise InputError(f"{name} holds 0 rows; needed: prompts")
        faults = [record.fault.at(record.file, record.line) for record in records if record.fault]
        if len(faults) == len(records):
            raise InputError(
                f"{name} holds no prompts{_reasons(faults)}; needed: a JSON object a line, or a list of objects in a "
                ".json file, with double quotes (json.dumps writes them)"
            )
    rows, rejections = read_rows_of_prompts(*sets.values(), as_text=as_text, tokenizer=tokenizer)
    if row_check and rows:
        checked = list(zip(rows, row_check([row.task for row in rows]), strict=True))
        rejections += [fault.at(row.file, row.line) for row, fault in checked if fault]
        rows = [row for row, fault in checked if not fault]
    if not rows:
        raise InputError(f"{one_line(', '.join(sets))} holds no prompts that can be used{_reasons(rejections)}")
    return rows, rejections


def read_rows_of_prompts(
    *sets: Sequence[Record], as_text: bool = False, tokenizer: Any = None
) -> tuple[list[PromptRow], list[Rejection]]:
    """(each prompt once, rejections) of the rows of all data sets; see `read_prompts`.

    Raises InputError for a set in which no row has a prompt.
    """
    needed = f"one of {', '.join(FORMS)}; or Alpaca's or UltraFeedback's instruction; or ShareGPT's conversations"
    found = recognise(sets, [(form,) for form in FORMS], "prompts", needed)
    seen: dict[str, PromptRow] = {}

    def read(record: Record) -> PromptRow:
        row = _read_row(record, as_text, tokenizer)
        if row.prompt_key in seen:
            raise RowError("prompt", f"the same prompt as in {line_of(seen[row.prompt_key], row)}", DUPLICATE_PROMPT)
        seen[row.prompt_key] = row
        return row

    return read_rows(found, read)


def _reasons(rejections: Sequence[Rejection]) -> str:
    """The number of rejected rows, with the first ones of each kind; empty if there are none."""
    kinds: dict[tuple[str, str], Rejection] = {}
    for one in rejections:
        kinds.setdefault((one.field, one.reason), one)
    said = "; ".join(f"line {one.line}: {one_line(one.field, 80)}: {one.found}" for one in [*kinds.values()][:REASONS])
    return f"; rows rejected: {len(rejections):,} ({said})" if rejections else ""


def _read_row(record: Record, as_text: bool, tokenizer: Any) -> PromptRow:
    name = next((name for name in FORMS if record.fields.get(name) not in (None, "", [])), None)
    if name is None:
        raise RowError("prompt", "missing or empty", NO_PROMPT)
    value = record.fields[name]
    prompt: Conversation | str
    tools = record.fields.get("tools")
    if as_text and isinstance(value, str):
        prompt, key = value, value
    else:
        prompt = (
            read_pair(record).conversation if name == "chosen" else _unanswered(read_conversation(value, name, tools))
        )
        if not prompt.turns:
            raise RowError(name, "no turn to answer", NO_PROMPT)
        if tokenizer is not None and has_tools(prompt):
            [text] = render_each(tokenizer, [prompt])
            if isinstance(text, InputError):
                raise RowError(name, str(text), UNFIT)
        key = prompt_key(prompt)
    columns = {k: v for k, v in record.fields.items() if k not in (*FORMS, "rejected")}
    return PromptRow({"prompt": prompt, **columns}, record.file, record.line, key)


def _unanswered(conversation: Conversation) -> Conversation:
    """Without the bot's turns at the end: that is what the policy is to say."""
    turns = conversation.turns
    end = len(turns)
    while end and turns[end - 1].speaker == "bot":
        end -= 1
    return replace(conversation, turns=turns[:end])
