"""Rows in other tools' formats, under the column names of lmgym's own forms, so that every stage reads them alike.

- Alpaca: `instruction`, `input`, `output`, also `system` and `history`, become `prompt` and `completion`. A prompt is
  a user's message: the instruction, and below an empty line the input. Preferences keep their `chosen` and `rejected`.
- ShareGPT: `conversations` of `from` and `value`, also `system` and `tools`, become `messages`; beside `chosen` and
  `rejected` they become `prompt`.
- UltraFeedback: `instruction` and `completions`, each with a `response` and a score, become `prompt`, `replies` and
  `ranks`. In its binarized form the text of `prompt` stands again in both sides' messages, which are the prompt then.
- TRL's types have the names of ours. Its stepwise type is refused.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from lmgym.data.json_rows import parse_json
from lmgym.data.records import Record
from lmgym.data.rejections import NO_PROMPT, NO_REPLY, OUT_OF_RANGE, WRONG_TYPE, RowError, tally
from lmgym.errors import InputError, listed, one_line, shown

SPEAKERS = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    "function_response": "tool",
}
"""ShareGPT's speakers as roles of messages; others have the names of roles"""
SCORES = ("overall_score", "fine-grained_score")
"""of UltraFeedback: the first that all completions of a row have"""

Columns = tuple[dict[str, Any], dict[str, str]]
"""(fields by our names, the columns that they were made of)"""


def recognise(sets: Sequence[Sequence[Record]], forms: Sequence[Sequence[str]], noun: str, needed: str) -> list[Record]:
    """The rows of all data sets with the columns of other tools' formats under our names.

    Raises InputError for a set without rows, and for one in which no row has all columns of a form; `noun` ("pairs")
    and `needed` (the columns in words) are for the message.
    """
    found = [[renamed(record) for record in records] for records in sets]
    for records in found:
        if not records:
            raise InputError(f"the dataset is empty: found 0 rows; needed: at least 2 {noun}")
        _refuse_stepwise(records)
        if not any(set(form) <= record.fields.keys() for record in records for form in forms):
            columns = sorted({name for record in records[:100] for name in record.fields})
            raise InputError(
                f"{one_line(records[0].file)} holds no {noun}: found the columns {listed(columns)}; needed: {needed} "
                f"(rename yours to these){_unreadable(records)}"
            )
    return list(chain.from_iterable(found))


def _unreadable(records: Sequence[Record]) -> str:
    """The count of records that could not be read, with reasons, to add to a message; empty if all could."""
    found = tally((r.fault.at(r.file, r.line) for r in records if r.fault), len(records))
    return f"; {found.line}" if found.rejected else ""


def _refuse_stepwise(records: Sequence[Record]) -> None:
    """Raises InputError where every row is of TRL's stepwise type, a label for each step of a reply."""
    rows = [record.fields for record in records if not record.fault]
    if rows and all("labels" in fields and _is_texts(fields.get("completions")) for fields in rows):
        raise InputError(
            f"{one_line(records[0].file)} holds stepwise rows (prompt, completions, labels), which no stage trains on; "
            "needed: one label or rank for a whole reply"
        )


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def renamed(record: Record) -> Record:
    """A row under our names; one that is in none of the formats is unchanged."""
    fields = record.fields
    if record.fault or record.names:
        return record
    try:
        if fields.get("conversations") and not fields.get("messages"):
            columns, names = _sharegpt(fields)
        elif _repeats_prompt(fields):
            columns, names = {"prompt": fields["chosen"][:-1]}, {}
        elif "instruction" not in fields or fields.get("prompt") or fields.get("messages"):
            return record
        elif "completions" in fields:
            columns, names = _ultrafeedback(fields)
        else:
            columns, names = _alpaca(fields)
    except RowError as error:
        return replace(record, fault=error.with_traceback(None))
    return replace(record, fields={**fields, **columns}, names=names)


def _alpaca(fields: dict[str, Any]) -> Columns:
    said, more = _text(fields, "instruction"), _text(fields, "input")
    if not said:
        raise RowError("instruction", "missing or empty", NO_PROMPT)
    turns = [
        _message(role, text)
        for pair in _history(fields)
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]
    prompt = [*_system(fields), *turns, _message("user", "\n\n".join(filter(None, (said, more))))]
    columns, names = {"prompt": prompt}, {"prompt": "instruction"}
    if "output" in fields:
        columns["completion"], names["completion"] = fields["output"], "output"
    return columns, names


def _history(fields: dict[str, Any]) -> list[list[str]]:
    """Earlier turns: pairs of an instruction and its output."""
    history = fields.get("history") or []
    is_list = isinstance(history, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in history)
    if not is_list or not all(isinstance(text, str) for pair in history for text in pair):
        raise RowError("history", f"{shown(history)}; needed: a list of [instruction, output]", WRONG_TYPE)
    return history


def _ultrafeedback(fields: dict[str, Any]) -> Columns:
    said, completions = _text(fields, "instruction"), fields["completions"]
    if not said:
        raise RowError("instruction", "missing or empty", NO_PROMPT)
    if not isinstance(completions, list) or not completions:
        raise RowError("completions", f"{shown(completions)}; needed: at least 2 with their scores", NO_REPLY)
    for number, one in enumerate(completions, 1):
        if not isinstance(one, dict) or not isinstance(one.get("response"), str):
            raise RowError("completions", f"completion {number} has no response; needed: text", NO_REPLY)
    name = next((name for name in SCORES if all(_is_score(one.get(name)) for one in completions)), None)
    if name is None:
        found = f"a completion without a score; needed: a number as {' or '.join(SCORES)} of each"
        raise RowError("completions", found, OUT_OF_RANGE)
    scores = [float(one[name]) for one in completions]
    order = sorted(set(scores), reverse=True)
    columns = {
        "prompt": [*_system(fields), _message("user", said)],
        "replies": [one["response"] for one in completions],
        "ranks": [order.index(score) + 1 for score in scores],
    }
    return columns, {"prompt": "instruction", "replies": "completions", "ranks": "completions"}


def _repeats_prompt(fields: dict[str, Any]) -> bool:
    """True if the prompt is the text of the message before the chosen reply: one message, whatever its text."""
    prompt, chosen = fields.get("prompt"), fields.get("chosen")
    if not isinstance(prompt, str) or not isinstance(chosen, list) or len(chosen) < 2:
        return False
    last = chosen[-2]
    content = last.get("content") if isinstance(last, dict) else None
    return isinstance(content, str) and content.strip() == prompt.strip()


def _is_score(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _sharegpt(fields: dict[str, Any]) -> Columns:
    items = fields["conversations"]
    if not isinstance(items, list):
        raise RowError("conversations", f"{shown(items)}; needed: a list of messages", WRONG_TYPE)
    chat = [_sharegpt_message(item, "conversations") for item in items]
    has_system = isinstance(chat[0], dict) and chat[0]["role"] == "system"
    chat = chat if has_system else [*_system(fields), *chat]
    if not {"chosen", "rejected"} <= fields.keys():
        return {"messages": chat}, {"messages": "conversations"}
    sides = {
        name: [_sharegpt_message(fields[name], name)] if isinstance(fields[name], dict) else fields[name]
        for name in ("chosen", "rejected")
    }
    return {"prompt": chat, **sides}, {"prompt": "conversations"}


def _sharegpt_message(item: Any, column: str) -> Any:
    """A message of ShareGPT as one of ours; anything else unchanged, for the reader of messages to refuse."""
    if not isinstance(item, dict):
        return item
    speaker, value = item.get("from", item.get("role")), item.get("value", item.get("content"))
    role = SPEAKERS.get(speaker.lower(), speaker) if isinstance(speaker, str) else speaker
    message = {"role": role, "content": value}
    if speaker == "function_call" and isinstance(value, str):
        calls = parse_json(value, column)
        return message | {"content": "", "tool_calls": calls if isinstance(calls, list) else [calls]}
    kept = ("name", "tool_call_id", "tool_calls")
    return message | {name: item[name] for name in kept if item.get(name)}


def _system(fields: dict[str, Any]) -> list[dict[str, str]]:
    text = _text(fields, "system")
    return [_message("system", text)] if text else []


def _message(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def _text(fields: dict[str, Any], name: str) -> str:
    """A text, stripped; empty if there is none."""
    value = fields.get(name)
    if not isinstance(value, str | None):
        raise RowError(name, f"{shown(value)}; needed: text", WRONG_TYPE)
    return (value or "").strip()
