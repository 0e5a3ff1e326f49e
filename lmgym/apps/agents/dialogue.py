"""The messages of an episode: never two of one speaker in a row, and for any chat template."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lmgym.errors import InputError, shown
from lmgym.messages import from_messages
from lmgym.text import Conversation, Turn, render

MARK = "rules of the game"

Messages = list[dict[str, str]]
"""chat messages with `role` and `content`"""


def add_message(messages: Messages, role: str, text: str) -> None:
    """Append a message; one of the same role as the last is joined to it, and one that repeats it is left out."""
    if not messages or messages[-1]["role"] != role:
        messages.append({"role": role, "content": text})
    elif messages[-1]["content"] != text:
        messages[-1] = {"role": role, "content": f"{messages[-1]['content']}\n\n{text}"}


def conversation_of(messages: Sequence[Mapping[str, Any]], has_system: bool) -> Conversation:
    """The conversation of messages; without `has_system` the first user turn begins with the system prompt.

    Raises InputError for what are no messages, and for a last one that is not the user's.
    """
    joined: Messages = []
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
            raise InputError(f"a message is {shown(message)}; needed: a dict with role and content, a text")
        add_message(joined, str(message.get("role")), message["content"])
    try:
        conversation = from_messages(joined)
    except ValueError as error:
        raise InputError(str(error)) from error
    if not conversation.turns or conversation.turns[-1].speaker != "user":
        raise InputError("the messages do not end with one of the user; needed: an observation to reply to")
    if has_system or not conversation.persona:
        return conversation
    first, *others = conversation.turns
    return Conversation((replace(first, text=f"{conversation.persona}\n\n{first.text}"), *others))


def takes_system(tokenizer: Any) -> bool:
    """False if the tokenizer's chat template refuses a system message, or leaves it out."""
    try:
        return MARK in render(tokenizer, Conversation((Turn("user", "Hello"),), MARK))
    except InputError:
        return False
