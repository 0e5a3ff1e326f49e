"""Chat messages and transcripts, read as conversations: roles, content in parts, thoughts, and what is learned.

Turns are stripped of surrounding white space when they are read, and not changed otherwise: every stage sees the same
line breaks, lists and code.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from lmgym.errors import shown
from lmgym.text import REASONING, ROLES, Conversation, Turn
from lmgym.tool_calls import read_extra

WEIGHTS = ("weight", "train", "loss")
"""names of what says whether a message is learned: 1 or true, 0 or false"""
MESSAGE_KEYS = frozenset(("role", "from", "content", "value", "tool_calls", "name", "tool_call_id", "function_call"))
MESSAGE_KEYS |= {*REASONING, *WEIGHTS}
"""keys of a message that are read"""
MARKS = (
    re.compile(r"(?:\A|\n\n)(Human|Assistant):"),
    re.compile(r"(?:\A|\n)(User|Bot):"),
    re.compile(
        r"#{2,4} ?(Human|User|Instruction|Question|Input|System|Assistant|Bot|Response|Answer|Output)(?::|(?=\n))", re.I
    ),
    re.compile(r"(?:\A|\n)(Human|User|Question|Q|System|Assistant|AI|Bot|Answer|A):", re.I),
)
"""of transcripts: hh's, ours, those of Guanaco and Alpaca, and lines that begin with a name"""
SPOKEN = ROLES | dict.fromkeys(("instruction", "question", "q", "input"), "user")
SPOKEN |= dict.fromkeys(("response", "answer", "a", "output"), "assistant")
"""roles by the names in marks"""
LINE = re.compile(r"(?:\A|\n)[A-Za-z]{1,9}:")
"""what every transcript without ## has: a line that begins with a name, the longest of which is Assistant"""


def from_messages(rows: Sequence[dict[str, Any]]) -> Conversation:
    """The conversation of chat messages, stripped as in transcripts; those of the system at its head are the persona.

    Raises ValueError for an unknown role, content that is not text, and a tool's result that answers nothing.
    """
    turns: list[Turn] = []
    persona = []
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise ValueError(f"message {number} is {shown(row)}; needed: an object with role and content")
        try:
            turn = _turn(row)
        except ValueError as error:
            raise ValueError(f"message {number} {error}") from None
        if turn.speaker == "tool" and (not turns or turns[-1].speaker == "user"):
            raise ValueError(f"message {number} is the result of a tool; needed: an assistant's message before it")
        if turn.speaker == "system" and not turns:
            persona.append(turn.text)
        else:
            turns.append(turn)
    return Conversation(tuple(turns), "\n".join(persona))


def _turn(row: dict[str, Any]) -> Turn:
    """A message as a turn, whose speaker may be "system". Raises ValueError."""
    name = row.get("role") or row.get("from")
    role = ROLES.get(name.lower()) if isinstance(name, str) else None
    if role is None:
        raise ValueError(_unknown_role(name))
    if role == "assistant" and row.get("function_call") and not row.get("tool_calls"):
        row = row | {"tool_calls": [row["function_call"]]}
    content, thought = _content(row, role)
    extra = read_extra(row, role)
    if role == "assistant" and (thought := thought or _reasoning(row)):
        extra = json.dumps({REASONING[0]: thought} | (json.loads(extra) if extra else {}), ensure_ascii=False)
    return Turn("bot" if role == "assistant" else role, content.strip(), extra, _is_learned(row))


def _unknown_role(name: object) -> str:
    found = f"has the role {shown(name)}, which is not supported" if name else "has no role"
    return f"{found}; needed: user, assistant, system or tool"


def _content(row: dict[str, Any], role: str) -> tuple[str, str]:
    """(text, reasoning in it) of a message; a bot that calls tools may say nothing. Raises ValueError."""
    content = row.get("content", row.get("value"))
    if isinstance(content, str):
        return content, ""
    if content is None and role == "assistant" and row.get("tool_calls"):
        return "", ""
    if isinstance(content, list):
        return _text_of_parts(content)
    found = "has no content" if content is None else f"has the content {shown(content)}"
    raise ValueError(f"{found}; needed: content of text")


def _text_of_parts(parts: list[Any]) -> tuple[str, str]:
    """(text, reasoning) of content in parts, as OpenAI and Anthropic write it. Raises ValueError for other media."""
    texts: list[str] = []
    thoughts: list[str] = []
    for part in parts:
        kind = part.get("type", "text") if isinstance(part, dict) else "text"
        value = part.get(kind, part.get("text")) if isinstance(part, dict) else part
        if kind not in ("text", "input_text", "output_text", "thinking") or not isinstance(value, str):
            found = f"has content of the type {shown(kind)}" if kind != "text" else f"has the part {shown(part)}"
            raise ValueError(f"{found}, which no stage reads; needed: content of text")
        (thoughts if kind == "thinking" else texts).append(value)
    return "".join(texts), "".join(thoughts)


def _reasoning(row: dict[str, Any]) -> str:
    """The bot's reasoning, stripped. Raises ValueError for anything but text, and for two different texts."""
    found = {name: row[name] for name in REASONING if row.get(name)}
    for name, value in found.items():
        if not isinstance(value, str):
            raise ValueError(f"has the {name} {shown(value)}; needed: text")
    if len(set(found.values())) > 1:
        raise ValueError(f"has different texts as {' and '.join(found)}; needed: one")
    return next((value.strip() for value in found.values()), "")


def _is_learned(row: dict[str, Any]) -> bool:
    """False for a message whose weight is 0. Raises ValueError for other weights than 0 and 1."""
    for name in WEIGHTS:
        value = row.get(name)
        if value is not None and value not in (0, 1):
            raise ValueError(f"has the {name} {shown(value)}; needed: 0 or 1, false or true")
    return all(row.get(name) in (None, 1) for name in WEIGHTS)


def find_marks(text: str) -> list[re.Match[str]]:
    """The marks of a transcript: of the kind that has both speakers, or that is first; else hh's or ours."""
    best: list[re.Match[str]] = []
    usual: list[re.Match[str]] = []
    if "##" not in text and (":" not in text or not LINE.search(text)):  # most texts
        return []
    for number, kind in enumerate(MARKS):
        marks = list(kind.finditer(text))
        if len({speaker_of(mark) for mark in marks} & {"user", "assistant"}) == 2:
            best = marks if not best or marks[0].start() < best[0].start() else best
            if not best[0].start():
                break
        elif number < 2 and marks and (not usual or marks[0].start() < usual[0].start()):
            usual = marks
    return best or usual


def speaker_of(mark: re.Match[str]) -> str:
    """The role of a mark: user, assistant or system."""
    return SPOKEN[mark.group(1).lower()]


def from_transcript(text: str) -> Conversation:
    """The conversation of a transcript with one of the kinds of MARKS, such as hh's or our "User: ...\\nBot: ...".

    Text before the first mark is the persona. A trailing empty turn of the bot ("\\nBot:") is left out; the input of an
    instruction is a part of it. Text without a mark is one turn of the user.
    """
    marks = find_marks(text)
    if not marks:
        return Conversation((Turn("user", text.strip()),), is_text=True)
    persona, turns = [text[: marks[0].start()].strip()], list[Turn]()
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        said = text[mark.end() : following.start() if following else None].strip()
        role = speaker_of(mark)
        if role == "system" and not turns:
            persona.append(said)
        elif mark.group(1).lower() == "input" and turns and turns[-1].speaker == "user":
            turns[-1] = Turn("user", f"{turns[-1].text}\n\n{said}".strip())
        else:
            turns.append(Turn("bot" if role == "assistant" else role, said))
    if turns and turns[-1] == Turn("bot", ""):
        turns.pop()
    return Conversation(tuple(turns), "\n".join(filter(None, persona)), is_text=True)
