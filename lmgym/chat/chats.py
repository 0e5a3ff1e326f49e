"""Whole conversations out of any dataset that the project reads: messages, transcripts, a chosen side, logs."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from lmgym.data.json_rows import parse_json, refuse_unusable_value
from lmgym.data.records import Record, read_records
from lmgym.data.rejections import NO_VALUE, WRONG_TYPE, Rejection, RowError
from lmgym.data.rows import read_conversation, read_rows
from lmgym.errors import InputError, listed, one_line, shown
from lmgym.text import Conversation, Turn, from_transcript

WHOLE = ("messages", "conversation", "text", "transcript")
REPLIES = ("chosen", "completion")
UNANSWERED = "without a user who answers a bot"
NEEDED = (
    "messages, text, chosen or completion (with prompt where that is apart), or input_text and output_text, and in it "
    "a user who answers a bot"
)


def read_chats(dataset: str) -> tuple[list[Conversation], list[Rejection]]:
    """(conversations in which a user answers a bot, the rows that hold none) of a file, a folder or a hub id.

    Raises InputError where no row holds one.
    """
    found, rejections = read_rows(read_records(dataset), _chat)
    if not found:
        why = f"; {rejections[0]}" if rejections else ""
        raise InputError(f"{one_line(dataset)} has no conversation in {len(rejections)} rows; needed: {NEEDED}{why}")
    return found, rejections


def _chat(record: Record) -> Conversation:
    name, chat = _read(record.fields)
    if not _is_answered(chat.turns):
        raise RowError(name, "no user answers a bot in it", UNANSWERED)
    return chat


def _read(fields: dict[str, Any]) -> tuple[str, Conversation]:
    """(the field, its conversation). Raises RowError where the row has none."""
    for name in (*WHOLE, *REPLIES):
        if fields.get(name):
            chat = _decoded(fields[name], name)
            return name, _after_prompt(fields, name, chat) if name in REPLIES and fields.get("prompt") else chat
    if fields.get("input_text"):
        for name in ("input_text", "output_text"):
            if not isinstance(fields.get(name), str | None):
                raise RowError(name, f"{shown(fields[name])}; needed: text", WRONG_TYPE)
        prompt = from_transcript(fields["input_text"])
        return "input_text", _with_reply(prompt, fields.get("output_text") or "")
    raise RowError("(row)", f"fields {listed(fields)}", NO_VALUE)


def _decoded(value: Any, name: str) -> Conversation:
    if isinstance(value, str) and value.lstrip().startswith("[{"):  # a CSV's messages come as text
        value = parse_json(value, name)
        refuse_unusable_value(value, name)
    return read_conversation(value, name)


def _after_prompt(fields: dict[str, Any], name: str, reply: Conversation) -> Conversation:
    """The prompt and the reply to it, which may repeat the prompt."""
    prompt = _decoded(fields["prompt"], "prompt")
    if isinstance(fields[name], str) and len(reply.turns) == 1:
        return _with_reply(prompt, fields[name])
    rest = reply.turns[len(prompt.turns) :] if reply.turns[: len(prompt.turns)] == prompt.turns else reply.turns
    return replace(prompt, turns=(*prompt.turns, *rest), persona=prompt.persona or reply.persona)


def _with_reply(prompt: Conversation, reply: str) -> Conversation:
    return replace(prompt, turns=(*prompt.turns, Turn("bot", reply.strip()))) if reply.strip() else prompt


def _is_answered(turns: Sequence[Turn]) -> bool:
    return any((a.speaker, b.speaker) == ("bot", "user") for a, b in pairwise(turns))
