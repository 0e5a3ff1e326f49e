"""Observations of an OpenEnv server as text, and replies as actions of its schema: by rules, for any server.

Observations: fields that are null or empty, `done`, `reward` and `metadata` are left out (metadata is shown where
nothing else is left). A single text is the text, and JSON of the fields all else; either comes behind the conversation
so far. A list of messages with role and content is the conversation so far, to which other fields are added unless
their texts are in it.

Actions: a reply with a JSON object of the schema's fields; or, if exactly one field is required, the reply as a value
of its type. Of an integer, a number, a truth value and an enumeration, it is the only one in the reply.
"""

import base64
import json
import math
import numbers
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmgym.errors import shown
from lmgym.text import ROLES, reply_text
from lmgym.tool_calls import json_objects

NOT_SHOWN = ("done", "reward", "metadata")
ACTIONS = "actions"
"""a field of texts, which are the replies that the game allows"""
IMAGES = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"BM")
PIXELS = 16
"""least rows of an array of colours"""
WORDS = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "string": "text"}
NUMBER = {"integer": r"[-+]?\d+", "number": r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"}
NOTHING = "(nothing is shown)"
Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class Shown:
    """An observation as a policy reads it."""

    messages: Messages
    is_whole: bool = False
    """the messages are the conversation so far; otherwise what is new in it"""
    actions: Sequence[str] = ()


def read_observation(fields: Mapping[str, Any]) -> Shown:
    """The observation as messages, one of the user if the server has none. Raises ValueError for one with an image."""
    if name := next((name for name, value in fields.items() if has_image(value)), ""):
        raise ValueError(f"the field {shown(name)} of the observation is an image")
    left = _filled(fields, NOT_SHOWN) or _filled(fields.get("metadata") or {}, ())
    actions = left.pop(ACTIONS, ()) if _are_texts(left.get(ACTIONS)) and len(left) > 1 else ()
    chats = [name for name, value in left.items() if _are_messages(value)]
    if len(chats) != 1:
        return Shown([{"role": "user", "content": as_text(left)}], False, actions)
    messages = [dict(message) for message in left.pop(chats[0])]
    said = "\n\n".join(str(message["content"]) for message in messages)
    left = {name: value for name, value in left.items() if not (isinstance(value, str) and value in said)}
    if left and messages[-1]["role"] == "user":
        messages[-1]["content"] = f"{messages[-1]['content']}\n\n{as_text(left)}"
    elif left:
        messages.append({"role": "user", "content": as_text(left)})
    return Shown(messages, True, actions)


def as_text(fields: Mapping[str, Any]) -> str:
    """The text of a single field that is one, or JSON of all."""
    values = list(fields.values())
    if not values:
        return NOTHING
    only = values[0] if len(values) == 1 else None
    return only if isinstance(only, str) else json.dumps(dict(fields), ensure_ascii=False)


def read_result(fields: Mapping[str, Any]) -> str:
    """The text of a tool's result: its error, its value, or its contents. Raises ValueError for an image."""
    if has_image(dict(fields)):
        raise ValueError(f"the result of {shown(fields.get('tool_name'))} is an image")
    if error := fields.get("error"):
        return f"error: {error.get('message', error) if isinstance(error, dict) else error}"
    if "result" not in fields:
        return read_observation(fields).messages[-1]["content"]
    result = fields["result"]
    if isinstance(result, dict) and "content" in result:
        texts = [str(part.get("text", "")) for part in result["content"] or () if isinstance(part, dict)]
        result = result["data"] if result.get("data") is not None else "\n".join(texts)
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def numbers_of(fields: Mapping[str, Any], before: str = "") -> dict[str, float]:
    """All finite numbers of fields, of those within others as `outer/inner`."""
    found: dict[str, float] = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            found |= numbers_of(value, f"{before}{name}/")
        elif isinstance(value, numbers.Real) and math.isfinite(value):
            found[f"{before}{name}"] = float(value)
    return found


def has_image(value: Any) -> bool:
    """True of images: content of that type, as base64 or a data address, or an array of colours."""
    if isinstance(value, dict):
        kinds = (str(value.get(name) or "") for name in ("type", "mimeType", "mime_type", "media_type"))
        return any(kind.startswith("image") for kind in kinds) or any(map(has_image, value.values()))
    if isinstance(value, list):
        return _are_colours(value) or any(map(has_image, value))
    if not isinstance(value, str) or len(value) < 64:
        return False
    with_head = value.startswith("data:image/")
    try:
        return with_head or base64.b64decode(value[:64], validate=True).startswith(IMAGES)
    except ValueError:
        return False


def _are_colours(rows: list[Any]) -> bool:
    try:
        pixels = [pixel for row in rows[:PIXELS] for pixel in row]
        return (
            len(rows) >= PIXELS
            and bool(pixels)
            and all(isinstance(pixel, list) and len(pixel) in (3, 4) and isinstance(pixel[0], int) for pixel in pixels)
        )
    except TypeError:
        return False


def _filled(fields: Mapping[str, Any], without: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in without and value not in (None, "", [], {})}


def _are_messages(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(row, dict) and row.get("role") in ROLES and isinstance(row.get("content"), str) for row in value
    )


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


class Actions:
    """The actions of a JSON schema."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        parts = schema.get("properties") or {}
        self.fields = {name: _resolved(spec, schema) for name, spec in parts.items() if name != "metadata"}
        required = [name for name in schema.get("required") or () if name in self.fields]
        self.required = required
        alone = required or list(self.fields)
        self.only = alone[0] if len(alone) == 1 else ""
        """the field whose value a reply may be; empty if there are several"""

    @property
    def is_text(self) -> bool:
        """True if any reply is an action."""
        return bool(self.only) and _kind(self.fields[self.only]) == "string" and not _choices(self.fields[self.only])

    @property
    def needed(self) -> str:
        """An action in words."""
        if self.only:
            return _described(self.fields[self.only])
        parts = [
            f'"{name}" ({_described(spec)}{"" if name in self.required else "; may be left out"})'
            for name, spec in self.fields.items()
        ]
        return f"a JSON object with {', '.join(parts)}"

    def read(self, reply: str) -> dict[str, Any] | None:
        """The action; None of a reply that is none."""
        for found in json_objects(reply):
            if found and found.keys() <= self.fields.keys() and found.keys() >= set(self.required):
                return found
        if not self.only:
            return None
        values = list(_values(reply_text(reply), self.fields[self.only]))
        return {self.only: values[0]} if len(values) == 1 else None


def _values(reply: str, spec: Mapping[str, Any]) -> Iterator[Any]:
    """The values of a type that a reply has: of text, the whole reply."""
    kind, choices = _kind(spec), _choices(spec)
    if choices:
        exact = [choice for choice in choices if str(choice).casefold() == reply.casefold()]
        yield from exact or [one for one in choices if re.search(rf"(?<!\w){re.escape(str(one))}(?!\w)", reply, re.I)]
    elif kind == "string":
        yield reply
    elif kind in NUMBER:
        found = dict.fromkeys(re.findall(rf"(?<![\w.])(?:{NUMBER[kind]})(?![\w]|\.\d)", reply))
        yield from (int(one) if kind == "integer" else float(one) for one in found if len(one) < 20)
    elif kind == "boolean":
        yield from (one == "true" for one in dict.fromkeys(re.findall(r"\b(true|false)\b", reply.lower())))
    else:
        try:
            yield json.loads(reply)
        except (ValueError, RecursionError):
            if not kind:  # any value
                yield reply


def _resolved(spec: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """A field's schema without references, and of alternatives the first that is not null."""
    for _ in range(8):
        parts = spec.get("allOf") or [one for one in spec.get("anyOf") or () if one.get("type") != "null"]
        target = spec.get("$ref") or ""
        if not parts and not target:
            break
        found = parts[0] if parts else (root.get("$defs") or {}).get(target.rpartition("/")[2], {})
        spec = {**found, **{name: value for name, value in spec.items() if name not in ("allOf", "anyOf", "$ref")}}
    return spec


def _kind(spec: Mapping[str, Any]) -> str:
    kind = spec.get("type", "")
    return kind if isinstance(kind, str) else next((one for one in kind if one != "null"), "")


def _choices(spec: Mapping[str, Any]) -> list[Any]:
    return list(spec.get("enum") or ([spec["const"]] if "const" in spec else ()))


def _described(spec: Mapping[str, Any]) -> str:
    kind, choices = _kind(spec), _choices(spec)
    words = f"one of {', '.join(map(str, choices))}" if choices else WORDS.get(kind, f"JSON: {kind or 'any value'}")
    limits = [f"{word} {spec[name]}" for name, word in (("minimum", "from"), ("maximum", "to")) if name in spec]
    about = str(spec.get("description") or "").strip()
    return " ".join([words, *limits]) + (f": {about}" if about else "")
