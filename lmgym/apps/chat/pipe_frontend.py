"""A session from a pipe: each input line is a turn or a % command; the output is tables, or with --json objects."""

import json
import sys
from collections.abc import Iterable
from typing import IO, Any

from lmgym.apps.chat.actions import ChatView
from lmgym.apps.chat.exchanges import Exchange
from lmgym.apps.chat.screen import make_console, progress_on, show
from lmgym.apps.chat.session_commands import LEAVE, respond
from lmgym.console import say
from lmgym.scoring.ranking import ranks


def answer_lines(chat: ChatView, lines: Iterable[str], out: IO[str], as_json: bool) -> None:
    """Answers every line until the end or `exit`. With `as_json`, everything but turns goes to stderr."""
    if hasattr(lines, "reconfigure"):
        lines.reconfigure(encoding="utf-8", errors="replace")
    console = None if as_json else make_console(out)
    for line in lines:
        line = line.rstrip("\r\n")
        if line.strip() in LEAVE:
            break
        with progress_on(sys.stderr) as progress:
            response = respond(chat, line, progress)
        if console and response.ok:
            show(console, chat, response)
            continue
        if as_json and response.exchange is not None:
            if response.is_turn:
                print(json_line(as_object(response.exchange)), file=out, flush=True)
            for note in response.exchange.notes:
                say(f"note: {note}", error=True)
        texts = [*response.text.split("\n"), *response.commands] if response.ok else [response.text]
        for text in filter(None, texts):
            say(text, error=True)


def as_object(exchange: Exchange) -> dict[str, Any]:
    """A turn as a JSON object. `selected` counts from 0; a scorer that failed has null scores and an error in `failed`.

    While a blind choice is open, the object has neither reply nor scores.
    """
    ranked = {name: ranks(column) for name, column in exchange.columns.items()}
    candidates = [
        {
            "text": candidate.text,
            **({"thought": candidate.thought} if candidate.thought and not exchange.is_open else {}),
            "scores": {} if exchange.is_open else candidate.scores,
            "ranks": {} if exchange.is_open else {name: column[i] for name, column in ranked.items()},
            "tokens": candidate.tokens,
            "finish_reason": candidate.finish_reason,
        }
        for i, candidate in enumerate(exchange.candidates)
    ]
    failed = {"failed": exchange.failed} if exchange.failed else {}
    turn = {"turn": exchange.id, "user": exchange.user, "reply": exchange.reply, "selected": exchange.chosen}
    return {**turn, "candidates": candidates, **failed}


def json_line(value: dict[str, Any]) -> str:
    """JSON in ASCII without control characters; json.dumps does not escape DEL."""
    return json.dumps(value, ensure_ascii=True).replace("\x7f", "\\u007f")
