"""Tools in chats: the functions that a bot may call, its calls and their results, as chat templates take them.

A conversation holds them as JSON text (lmgym/text.py), so that it stays hashable. Fields that are null are dropped,
unless they come from JSON text: Parquet gives every object of a column the fields of all others, with null where there
was none.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from lmgym.errors import shown
from lmgym.templates import apply_template

FUNCTIONS, CALLS, RESULTS = "the functions of `tools`", "calls of tools", "results of tools"
_CALL: dict[str, Any] = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "call00001", "type": "function", "function": {"name": "probe", "arguments": {"word": "probed_call"}}},
    ],
}
_FUNCTION = {
    "type": "function",
    "function": {
        "name": "probed_function",
        "description": "Looks a word up.",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string", "description": "A word."}},
            "required": ["word"],
        },
    },
}
_RESULT = {"role": "tool", "name": "probe", "tool_call_id": "call00001", "content": "probed_result"}
_PROBES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    FUNCTIONS: ("probed_function", []),
    CALLS: ("probed_call", [_CALL]),
    RESULTS: ("probed_result", [_CALL, _RESULT]),
}


def json_objects(reply: str) -> Iterator[dict[str, Any]]:
    """The JSON objects in a reply from left to right, each also within others."""
    decoder = json.JSONDecoder()
    for found in re.finditer(r"\{", reply):
        try:
            value, _ = decoder.raw_decode(reply, found.start())
        except (ValueError, RecursionError):
            continue
        yield value


def called_function(reply: str) -> tuple[str, Any] | None:
    """(name, arguments) of the first JSON object in a reply that calls a function; None if there is none."""
    for value in json_objects(reply):
        function = value.get("function", value)
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            return function["name"], _parsed(function.get("arguments", function.get("parameters", {})))
    return None


def read_tools(value: Any) -> str:
    """The functions of a row's `tools`, a list of objects or its JSON text, as JSON; empty if there are none.

    Raises ValueError for anything else.
    """
    tools = _parsed(value)
    if not tools:
        return ""
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ValueError(f"{shown(value)}; needed: a list of functions as JSON schemas")
    return json.dumps(_without_nulls(tools), ensure_ascii=False)


def read_extra(message: Mapping[str, Any], role: str) -> str:
    """The fields of a message beside its role and content that a template reads, as JSON. Raises ValueError."""
    if role == "assistant" and message.get("tool_calls"):
        return json.dumps({"tool_calls": _read_calls(message["tool_calls"])}, ensure_ascii=False)
    if role != "tool":
        return ""
    names = {name: message[name] for name in ("name", "tool_call_id") if isinstance(message.get(name), str)}
    return json.dumps(names, ensure_ascii=False) if names else ""


def _read_calls(value: Any) -> list[dict[str, Any]]:
    """A message's `tool_calls`, each with its function's name and arguments as an object.

    A call may be {"function": {"name", "arguments"}} or {"name", "arguments"}, and arguments may be JSON text.
    """
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError(f"has tool_calls that are {shown(value)}; needed: a list of calls")
    return [_read_call(call) for call in value]


def _read_call(call: Any) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        raise ValueError(f"calls a tool by {shown(call)}; needed: an object with the function's name and arguments")
    given = function.get("arguments")
    parsed = _parsed(given)
    arguments = {} if parsed is None else parsed
    if not isinstance(arguments, Mapping):
        raise ValueError(f"calls {shown(name)} with the arguments {shown(given)}; needed: an object, or its JSON text")
    # of JSON text a null was meant
    arguments = dict(arguments) if isinstance(given, str) else _without_nulls(arguments)
    read = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"id": call["id"], **read} if isinstance(call.get("id"), str) else read


def _parsed(value: Any) -> Any:
    """The value of JSON text, None of a blank one, and anything else as it is."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list | tuple) else value


def parts_in_use(rows: Iterable[Mapping[str, Any]], tools: object) -> list[str]:
    """Parts of chat messages that need a chat template with tools."""
    found = {CALLS for row in rows if row.get("tool_calls")} | {RESULTS for row in rows if row["role"] == "tool"}
    return [part for part in (FUNCTIONS, CALLS, RESULTS) if part in found or (part == FUNCTIONS and tools)]


def parts_left_out(tokenizer, used: Sequence[str]) -> list[str]:
    """Those of the parts that the tokenizer's chat template leaves out without an error."""
    lost = _left_out(tokenizer, str(tokenizer.chat_template)) if used else ()  # it may be a dict
    return [part for part in used if part in lost]


@lru_cache(maxsize=8)
def _left_out(tokenizer, template: str) -> tuple[str, ...]:
    """The parts whose words are absent from a rendered example; a template's refusal shows when a row is rendered."""
    lost = []
    for part, (word, rows) in _PROBES.items():
        chat = [{"role": "user", "content": "Look it up."}, *rows]
        try:
            text = apply_template(tokenizer, chat, [_FUNCTION], prompt=True)
        except Exception:  # a template can raise anything
            continue
        if word not in text:
            lost.append(part)
    return tuple(lost)
