"""A session from a pipe: a line in is a turn, or a % command; out come tables, or with --json an object a turn."""

import json
import sys
from collections.abc import Iterable
from typing import IO, Any

from lmgym.chat.actions import Talk
from lmgym.chat.commands import LEAVE, respond
from lmgym.chat.exchanges import Exchange
from lmgym.chat.screen import make_console, progress_on, show
from lmgym.console import say
from lmgym.scoring.ranking import ranks


def answer_lines(talk: Talk, lines: Iterable[str], out: IO[str], as_json: bool) -> None:
    """Answers every line until the end or `exit`. What is no turn goes to stderr where objects are printed."""
    if hasattr(lines, "reconfigure"):
        lines.reconfigure(encoding="utf-8", errors="replace")
    console = None if as_json else make_console(out)
    for line in lines:
        line = line.rstrip("\r\n")
        if line.strip() in LEAVE:
            break
        with progress_on(sys.stderr) as progress:
            shown = respond(talk, line, progress)
        if console and shown.ok:
            show(console, talk, shown)
            continue
        if as_json and shown.is_turn and shown.exchange is not None:
            print(json_line(as_object(shown.exchange)), file=out, flush=True)
        notes = shown.exchange.notes if as_json and shown.exchange is not None else []
        for words in [*(f"note: {note}" for note in notes), *(shown.text.split("\n") if shown.ok else [shown.text])]:
            if words:
                say(words, error=True)


def as_object(exchange: Exchange) -> dict[str, Any]:
    """A turn for programs. `selected` counts from 0; a scorer that failed has null, and says why in `failed`.

    While a blind choice is open there is neither reply nor score.
    """
    placed = {name: ranks(column) for name, column in exchange.columns.items()}
    candidates = [
        {
            "text": candidate.text,
            "scores": {} if exchange.is_open else candidate.scores,
            "ranks": {} if exchange.is_open else {name: column[i] for name, column in placed.items()},
            "tokens": candidate.tokens,
            "finish_reason": candidate.finish_reason,
        }
        for i, candidate in enumerate(exchange.candidates)
    ]
    failed = {"failed": exchange.failed} if exchange.failed else {}
    turn = {"turn": exchange.id, "user": exchange.user, "reply": exchange.reply, "selected": exchange.chosen}
    return {**turn, "candidates": candidates, **failed}


def json_line(value: dict[str, Any]) -> str:
    """JSON in ASCII without a control character: json leaves DEL as it is."""
    return json.dumps(value, ensure_ascii=True).replace("\x7f", "\\u007f")
