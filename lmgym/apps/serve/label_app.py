"""The page on which people label pairs of replies, and the requests that it makes.

| path | |
|---|---|
| / | the page; its files are /page/NAME |
| /label/state | a rater's next pair, with progress and agreement |
| /label/verdict, /label/undo | a verdict, or its end; answered as the state is once it is on the disk |
| /label/overview | figures of all raters |
| /label/labels.jsonl | the rows for training |

A name is no account: who has the page may label under any name.
"""

import asyncio
import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field

from lmgym.apps.serve.base_app import new_app
from lmgym.apps.serve.guard import Refusal
from lmgym.apps.serve.http_server import serve_until_stopped
from lmgym.apps.serve.label_export import LABELS, LabelFiles, agreement, in_words, label_rows, numbers, summary
from lmgym.apps.serve.label_record import (
    SIDES,
    AlreadyJudged,
    LabelRecord,
    StoredPair,
    key_of,
    read_name,
)
from lmgym.apps.serve.label_rows import read_label_pairs
from lmgym.apps.serve.metrics import Metrics
from lmgym.apps.serve.page_files import HEADERS, add_files
from lmgym.config import ColumnConfig
from lmgym.console import say
from lmgym.data.mixing import set_names
from lmgym.errors import one_line
from lmgym.text import REASONING

SECONDS = 30
"""of a request that is under way when the server is asked to stop"""
Name = Annotated[str, Field(max_length=2000)]
Id = Annotated[str, Field(max_length=100)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Asking(Strict):
    rater: Name


class Verdict(Asking):
    pair: Id
    verdict: Literal["first", "second", "tie", "cannot say"]


class Undo(Asking):
    pair: Id


@dataclass(frozen=True)
class Labelling:
    """The rows to label, and the folder of the labels."""

    source: str
    """a file, a folder or a hub id, or several separated by commas"""
    output: str | None
    """the folder; None: outputs/labels with the source's name"""
    columns: ColumnConfig
    pairs_per_prompt: int | None
    question: str

    def open(self) -> LabelRecord:
        """The record of the pairs, with lines on how they were read. Raises InputError and RunStopped."""
        read = read_label_pairs(self.source, self.columns, self.pairs_per_prompt)
        name = Path(set_names(self.source)[0]).expanduser().resolve().name.partition(".")[0]
        record = LabelRecord(Path(self.output or f"outputs/labels/{name or 'rows'}").expanduser(), read.pairs)
        for line in (*read.notes, *record.notes):
            say(line)
        return record


def serve_labels(listener: socket.socket, labelling: Labelling, token: str, max_body_mb: float) -> None:
    """Serves pairs at a bound socket until SIGTERM or Ctrl-C, and prints the figures of their labels."""
    record = labelling.open()
    try:
        metrics, files = Metrics(), LabelFiles(record)
        app = make_label_app(record, files, labelling.question, metrics)
        serve_until_stopped(
            listener,
            app,
            metrics,
            "has a page to label on, and answers /label/labels.jsonl",
            token,
            max_body_mb,
            SECONDS,
        )
        files.close()
        for line in in_words(summary(record)):
            say(line)
        say(f"{record.folder / LABELS}")
    finally:
        record.close()


def make_label_app(record: LabelRecord, files: LabelFiles, question: str, metrics: Metrics) -> FastAPI:
    """The application."""
    app = new_app("lmgym labels", metrics, dict)
    add_files(app, "label.html")

    async def answer(rater: str, work: Callable[[str], Any] = lambda _: None) -> JSONResponse:
        def both() -> dict[str, Any]:
            name = read_name(rater)
            work(name)
            return state_of(record, name, question)

        return JSONResponse(await asyncio.to_thread(both), headers=HEADERS)

    def recorded(change: Callable[[], None], otherwise: str) -> None:
        try:
            change()
        except AlreadyJudged:
            raise Refusal(409, otherwise) from None
        except OSError as error:
            why = one_line(error.strerror or str(error))
            raise Refusal(503, f"your verdict could not be written ({why}), and does not count; try again") from error
        files.note_change()

    @app.post("/label/state", include_in_schema=False)
    async def state(body: Asking):
        return await answer(body.rater)

    @app.post("/label/verdict", include_in_schema=False)
    async def verdict(body: Verdict):
        otherwise = "you have judged this pair already, perhaps in another tab; that verdict stays, unless you undo it"
        judge = lambda name: record.judge(name, body.pair, body.verdict)  # noqa: E731
        return await answer(body.rater, lambda name: recorded(lambda: judge(name), otherwise))

    @app.post("/label/undo", include_in_schema=False)
    async def undo(body: Undo):
        otherwise = "that is no longer your latest verdict, perhaps because of another tab; nothing was undone"
        return await answer(body.rater, lambda name: recorded(lambda: record.undo(name, body.pair), otherwise))

    @app.post("/label/overview", include_in_schema=False)
    async def overview():
        return JSONResponse(await asyncio.to_thread(summary, record), headers=HEADERS)

    @app.api_route(f"/label/{LABELS}", methods=["GET", "POST"], include_in_schema=False)
    async def labels():
        rows = await asyncio.to_thread(label_rows, record)
        text = "".join(f"{json.dumps(row)}\n" for row in rows)
        return PlainTextResponse(text, media_type="application/x-ndjson", headers=HEADERS)

    return app


def state_of(record: LabelRecord, name: str, question: str) -> dict[str, Any]:
    """The state of a rater's page: of a pair that is open neither its sides nor anybody's verdict."""
    key = key_of(name)
    with record.lock:
        rater, pair = record.raters.get(key), record.next_pair(key)
        judged = rater.judged if rater else []
        return {
            "rater": rater.name if rater else name,
            "question": question,
            "judged": sum(key in record.votes.get(id, ()) for id in record.served),
            "pairs": len(record.served),
            "last": judged[-1] if judged and judged[-1] in record.served else None,
            "agreement": numbers(agreement(record, name)),
            "pair": pair and _view(pair, key),
        }


def _view(pair: StoredPair, key: str) -> dict[str, Any]:
    first = pair.first_shown(key)
    sides = (first, SIDES[first == SIDES[0]])
    turns = [_turn(message) for message in pair.row["prompt"]]
    tools = pair.row.get("tools")
    return {
        "id": pair.id,
        "turns": turns,
        "tools": json.dumps(tools, indent=2, ensure_ascii=False) if tools else "",
        "replies": [_reply(pair.row[side]) for side in sides],
    }


def _turn(message: dict[str, Any]) -> dict[str, str]:
    calls = message.get("tool_calls")
    text = message.get("content") or ""
    return {
        "role": message["role"],
        "text": "\n".join(filter(None, (text, json.dumps(calls, indent=2, ensure_ascii=False) if calls else ""))),
        "thoughts": message.get(REASONING[0], ""),
    }


def _reply(reply: Any) -> dict[str, str]:
    return {"role": "assistant", "text": reply, "thoughts": ""} if isinstance(reply, str) else _turn(reply[0])
