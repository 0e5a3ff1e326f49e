"""Rows in other tools' formats, under the column names of lmgym's own forms, so that every stage reads them alike.

A format says which columns it recognises, and what they become: `prompt` with `completion`, with `chosen` and
`rejected`, or with `replies` and `ranks` (1 the best); or `messages`. docs/data_formats.md lists them with examples;
those of preferences are in lmgym/data/preference_formats.py. TRL's types have the names of ours.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from lmgym.data.asked import ASKED, Columns, Fields, Format, asked, is_blank, is_texts, message
from lmgym.data.json_rows import parse_json
from lmgym.data.preference_formats import PREFERENCES
from lmgym.data.records import Record
from lmgym.data.rejections import UNSUPPORTED, WRONG_TYPE, RowError
from lmgym.data.text_forms import parse_messages
from lmgym.errors import InputError, listed, one_line, shown
from lmgym.text import ROLES

SPEAKERS = {"function_call": "assistant", "function_response": "tool"}
"""ShareGPT's speakers beside those that are roles"""
ANSWERS = ("output", "response", "answer", "reply", "solution", "target")
"""columns of a single reply, beside `completion`"""
REPLIES = ("completion", "chosen", "rejected", "replies", "ranks")
SCORED = "helpfulness"
"""a score of HelpSteer's single replies, which are good and bad ones"""


def renamed(record: Record) -> Record:
    """A row under our names; one that is in none of the formats is unchanged."""
    if record.fault:
        return record
    known = record.names or {}
    # a flag has named the prompt, so nothing else is it
    not_asked = {"instruction", *ASKED} if "prompt" in known else set()
    fields = {name: value for name, value in record.fields.items() if name not in not_asked}
    try:
        for format in FORMATS:
            if format.recognises(fields):
                columns = format.convert(fields)
                used = frozenset((*columns.names.values(), *columns.also))
                names = {ours: known.get(theirs, theirs) for ours, theirs in columns.names.items()}
                made = {**record.fields, **columns.fields}
                return replace(record, fields=made, names={**known, **names}, used=used)
    except RowError as error:
        return replace(record, fault=error.with_traceback(None))
    return record


# whole conversations


def _chat_column(fields: Fields) -> str | None:
    """The column of a conversation in another form than that of our `messages`."""
    messages = fields.get("messages")
    if not is_blank(messages):
        if is_texts(messages):
            return "messages"
        items = [one for one in messages if isinstance(one, dict)] if isinstance(messages, list) else []
        return "messages" if any(str(one.get("from", one.get("role"))) in SPEAKERS for one in items) else None
    if not is_blank(fields.get("conversations")):
        return "conversations"
    is_list = isinstance(fields.get("conversation"), list) and bool(fields["conversation"])
    return "conversation" if is_list and is_blank(fields.get("prompt")) and is_blank(fields.get("chosen")) else None


def _conversation(fields: Fields) -> Columns:
    name = _chat_column(fields)
    assert name is not None
    given = fields[name]
    items = parse_messages(given) if isinstance(given, str) else given  # a CSV holds JSON
    if not isinstance(items, list):
        raise RowError(name, f"{shown(given)}; needed: a list of messages", WRONG_TYPE)
    if is_texts(items):  # by turns, as LIMA's
        items = [message(("user", "assistant")[i % 2], text) for i, text in enumerate(items)]
    chat = [one for item in items for one in _messages(item, name)]
    mask = fields.get("mask")
    if isinstance(mask, str) and ROLES.get(mask.lower()) != "user":  # NeMo's: who is not learned
        raise RowError("mask", f"{shown(mask)} is not to be learned; needed: the user", UNSUPPORTED)
    also = ("mask",) if isinstance(mask, str) else ()
    if not {"chosen", "rejected"} <= fields.keys():
        return Columns({"messages": chat}, {"messages": name}, also)
    return Columns({"prompt": chat, **_sides(fields)}, {"prompt": name}, also)


def _messages(item: Any, column: str) -> list[Any]:
    """An item of a conversation as messages: one of ShareGPT's, or a question with its answer (Firefly's, xtuner's)."""
    for said, answered in (("human", "assistant"), ("input", "output")):
        if isinstance(item, dict) and {said, answered} <= item.keys():
            roles = (("system", "system"), ("user", said))
            asks = [message(role, item[key]) for role, key in roles if not is_blank(item.get(key))]
            rest = {key: value for key, value in item.items() if key not in ("system", said, answered)}
            if "output_with_loss" in rest:
                rest["weight"] = rest.pop("output_with_loss")
            return [*asks, message("assistant", item[answered]) | rest]
    return [_sharegpt_message(item, column)]


def _sharegpt_message(item: Any, column: str) -> Any:
    """A message of ShareGPT as one of ours; anything else unchanged, for the reader of messages to refuse."""
    if not isinstance(item, dict):
        return item
    speaker, value = item.get("from", item.get("role")), item.get("value", item.get("content"))
    role = SPEAKERS.get(speaker.lower(), ROLES.get(speaker.lower(), speaker)) if isinstance(speaker, str) else speaker
    said = {**item, "role": role, "content": value}
    said.pop("from", None), said.pop("value", None)
    if speaker == "function_call" and isinstance(value, str):
        calls = parse_json(value, column)
        return said | {"content": "", "tool_calls": calls if isinstance(calls, list) else [calls]}
    return {name: kept for name, kept in said.items() if kept or name in ("role", "content", "weight", "train", "loss")}


def _ends_in_question(fields: Fields) -> bool:
    """True of `messages` that `chosen` and `rejected` answer."""
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages or not {"chosen", "rejected"} <= fields.keys():
        return False
    role = messages[-1].get("role", messages[-1].get("from")) if isinstance(messages[-1], dict) else None
    return is_blank(fields.get("prompt")) and isinstance(role, str) and ROLES.get(role.lower()) in ("user", "tool")


def _sides(fields: Fields) -> dict[str, Any]:
    """`chosen` and `rejected`, of which a single message becomes a list."""
    return {
        name: [_sharegpt_message(fields[name], name)] if isinstance(fields[name], dict) else fields[name]
        for name in ("chosen", "rejected")
    }


def _has_functions(fields: Fields) -> bool:
    functions = fields.get("functions")
    is_list = isinstance(functions, list) and bool(functions) and all(isinstance(one, dict) for one in functions)
    return is_list and isinstance(fields.get("messages"), list) and is_blank(fields.get("tools"))


def _functions(fields: Fields) -> Columns:
    """OpenAI's first name of `tools`."""
    tools = [{"type": "function", "function": one} for one in fields["functions"]]
    return Columns({"tools": tools}, {"tools": "functions"})


# a question and its answer


def _is_asked(fields: Fields) -> bool:
    """True where a prompt has another name, earlier turns, or an answer that is not called completion."""
    if not all(is_blank(fields.get(name)) for name in ("messages", "input_text")):
        return False
    if is_blank(fields.get("prompt")):
        return "instruction" in fields or not all(is_blank(fields.get(name)) for name in ASKED)
    has_history = isinstance(fields.get("history"), list) and bool(fields["history"])
    has_reply = not all(is_blank(fields.get(name)) for name in REPLIES)
    return has_history or (not has_reply and any(name in fields for name in ANSWERS))


def _answered(fields: Fields) -> Columns:
    """A prompt and its answer; the prompt alone where several columns may be the answer, or scores judge it."""
    columns, names = asked(fields), answers_of(fields)
    if len(names) != 1 or SCORED in fields or not is_blank(fields.get("completion")):
        return columns
    return columns.and_also(Columns({"completion": fields[names[0]]}, {"completion": names[0]}))


def answers_of(fields: Fields) -> list[str]:
    """The columns that may be the answer."""
    there = [name for name in ANSWERS if name in fields]
    return [name for name in there if not is_blank(fields[name])] or there[:1]


def _self_instruct(fields: Fields) -> Columns:
    """`instances` of an instruction, each with an input and an output, of which a row may have one."""
    instances = fields["instances"]
    if len(instances) != 1 or not isinstance(instances[0], dict):
        raise RowError("instances", f"{shown(instances)}; needed: one, an object with input and output", UNSUPPORTED)
    columns = asked({**fields, "input": instances[0].get("input")})
    return columns.and_also(Columns({"completion": instances[0].get("output")}, {"completion": "instances"}))


FORMATS = (
    Format("ShareGPT", lambda f: _chat_column(f) is not None, _conversation),
    Format(
        "messages and two replies",
        _ends_in_question,
        lambda f: Columns({"prompt": f["messages"], **_sides(f)}, {"prompt": "messages"}),
    ),
    Format("functions", _has_functions, _functions),
    *PREFERENCES,
    Format("self-instruct", lambda f: "instruction" in f and isinstance(f.get("instances"), list), _self_instruct),
    Format("a question and its answer", _is_asked, _answered),
)
"""the first that recognises a row converts it"""


# rows that no stage reads


OURS = ("prompt", "completion", "messages", "text", "input_text", "chosen", "replies", "tokens")
REFUSED: tuple[tuple[str, Callable[[Fields], bool]], ...] = (
    (
        "stepwise rows (prompt, completions, labels), which no stage trains on; needed: one label or rank for a whole "
        "reply",
        lambda f: "labels" in f and is_texts(f.get("completions")),
    ),
    (
        "ids of tokens (input_ids) without their text, which no stage can check; needed: the texts or messages that "
        "they were made of",
        lambda f: any(name.endswith("input_ids") for name in f) and all(is_blank(f.get(name)) for name in OURS),
    ),
    (
        "segments of rendered text (axolotl's input_output), which would be rendered again; needed: messages, with "
        '"weight": 0 where a reply is not to be learned',
        lambda f: isinstance(f.get("segments"), list) and all(is_blank(f.get(name)) for name in OURS),
    ),
    (
        "single messages of OpenAssistant's trees (message_id, parent_id, text, role); needed: whole trees, as in its "
        "files *.trees.jsonl.gz, or a row of messages for each conversation",
        lambda f: {"message_id", "parent_id", "text", "role"} <= f.keys(),
    ),
)
"""(rows in words with what is needed, what recognises a row)"""


def refuse_stepwise(records: Sequence[Record]) -> None:
    """Raises InputError where every row is of a kind that no stage reads, such as TRL's stepwise type."""
    rows = [record.fields for record in records if not record.fault]
    for words, is_one in REFUSED:
        if rows and all(map(is_one, rows)):
            raise InputError(f"{one_line(records[0].file)} holds {words}")


def advice(records: Sequence[Record]) -> str:
    """Advice where the reply of rows is not clear, to be added to a message; empty for other rows."""
    rows = [record.fields for record in records if not record.fault]
    fields = next((row for row in rows if is_blank(row.get("completion")) and answers_of(row)), None)
    if fields is None:
        return ""
    names = answers_of(fields)
    if SCORED in fields:
        keep = f"keep the good ones by their {SCORED}, and add --reply_column {names[0]}"
        return f"; these replies are good and bad ones: {keep}"
    return f"; either {listed(names)} may be the reply: --reply_column says which" if len(names) > 1 else ""
