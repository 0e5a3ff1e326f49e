"""The question of another tool's row as our `prompt`, and the parts of a format, which says what columns become."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lmgym.data.rejections import NO_PROMPT, UNSUPPORTED, WRONG_TYPE, RowError
from lmgym.errors import listed, shown

Fields = Mapping[str, Any]
ASKED = ("question", "query", "problem", "input")
"""columns of a prompt, beside `prompt` and `instruction`"""


@dataclass(frozen=True)
class Columns:
    """Fields by our names, with the columns that they were made of."""

    fields: dict[str, Any]
    names: dict[str, str]
    """our name to theirs, for messages"""
    also: tuple[str, ...] = ()
    """further columns that are in the fields"""

    def and_also(self, other: "Columns") -> "Columns":
        """These columns and others."""
        return Columns(self.fields | other.fields, self.names | other.names, (*self.also, *other.also))


@dataclass(frozen=True)
class Format:
    """Another tool's format of rows."""

    name: str
    recognises: Callable[[Fields], bool]
    convert: Callable[[Fields], Columns]


def asked(fields: Fields) -> Columns:
    """The question of a row, as `prompt`, with the turns of its `history` before it; no fields if it asks nothing.

    An instruction of Alpaca's is one message with its input. Raises RowError where two columns may be the prompt.
    """
    filled = [name for name in ("prompt", "instruction", *ASKED) if not is_blank(fields.get(name))]
    if "prompt" in filled:
        names = [name for name in filled if name in ("prompt", "instruction")]
    elif "instruction" in fields:
        names = ["instruction", *(name for name in filled if name not in ("instruction", "input"))]
    else:
        names = filled
    if not names:
        return Columns({}, {})
    first = names[0]
    if len(names) > 1 and fields[names[1]] != fields[first]:
        raise RowError(
            names[1], f"either {listed(names)} may be the prompt; needed: --prompt_column with one of them", UNSUPPORTED
        )
    history = read_history(fields)
    if first != "instruction":
        value = [*history, message("user", read_text(fields, first))] if history else fields[first]
        return Columns({"prompt": value}, {"prompt": first}, ("history",) if history else ())
    said, more = read_text(fields, "instruction"), read_text(fields, "input")
    if not said and not more:
        raise RowError("instruction", "missing or empty", NO_PROMPT)
    prompt = [*history, message("user", "\n\n".join(filter(None, (said, more))))]
    return Columns({"prompt": prompt}, {"prompt": "instruction"}, ("input", "history"))


def read_history(fields: Fields) -> list[dict[str, Any]]:
    """Earlier turns as messages, from pairs of an instruction and its output, or from messages."""
    history = fields.get("history") or []
    if isinstance(history, list) and all(isinstance(item, dict) for item in history):
        return history
    is_list = isinstance(history, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in history)
    if not is_list or not all(isinstance(text, str) for pair in history for text in pair):
        raise RowError("history", f"{shown(history)}; needed: a list of [instruction, output]", WRONG_TYPE)
    return [message(role, text) for pair in history for role, text in zip(("user", "assistant"), pair, strict=True)]


def message(role: str, text: str) -> dict[str, Any]:
    """A message of a chat."""
    return {"role": role, "content": text}


def read_text(fields: Fields, name: str) -> str:
    """A text, stripped; empty if there is none."""
    value = fields.get(name)
    if not isinstance(value, str | None):
        raise RowError(name, f"{shown(value)}; needed: text", WRONG_TYPE)
    return (value or "").strip()


def is_blank(value: Any) -> bool:
    """True of null, white space, and empty lists and objects."""
    return value is None or (isinstance(value, str) and not value.strip()) or value in ([], {})


def is_texts(value: Any) -> bool:
    """True of a list of texts, at least one."""
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)
