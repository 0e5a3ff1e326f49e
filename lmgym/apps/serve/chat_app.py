"""The routes of the chat server: OpenAI's chat completions, the list of models, and the page."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from lmgym.apps.serve.base_app import new_app
from lmgym.apps.serve.chat_models import ChatModels, ChatOptions, load_models
from lmgym.apps.serve.completions import Answer, ChatCompletion, Writer, answer, read_completion
from lmgym.apps.serve.guard import Refusal
from lmgym.apps.serve.http_server import serve_until_stopped
from lmgym.apps.serve.page import add_page
from lmgym.console import say
from lmgym.errors import InputError

KEEP_ALIVE_SECONDS = 5.0
"""between comments in a stream whose reply is not chosen yet; proxies and clients give up on silent connections"""


def serve_chat(
    listener: socket.socket,
    paths: Mapping[str, str],
    token: str,
    options: ChatOptions,
    sessions_folder: str | Path,
    max_body_mb: float,
) -> None:
    """Serves policies at a bound socket until SIGTERM or Ctrl-C, and then answers what waits."""
    models = load_models(paths, options)
    app, answers = make_chat_app(models, sessions_folder), "has a page, and answers /v1/chat/completions and /v1/models"
    serve_until_stopped(listener, app, models.metrics, answers, token, max_body_mb, models.timeout)
    models.stop()
    say("stopped")


def make_chat_app(models: ChatModels, sessions_folder: str | Path) -> FastAPI:
    """The application; the page keeps its sessions in a folder."""

    def gauges() -> dict[str, float]:
        return {"lmgym_queue_requests": models.waiting, "lmgym_queue_capacity": models.queue}

    app = new_app("lmgym chat", models.metrics, gauges)
    _add_completions(app, models)
    add_page(app, models, sessions_folder)
    return app


def _add_completions(app: FastAPI, models: ChatModels) -> None:
    """The routes that clients of OpenAI call, and `/ready`."""
    started = int(time.time())

    def listing(name: str) -> dict[str, Any]:
        defaults = models.defaults
        about: dict[str, Any] = {"best_of": defaults.best_of, "max_best_of": defaults.max_best_of}
        about |= {"scorers": list(models.judges), "models": models.revisions(name)}
        return {"id": name, "object": "model", "created": started, "owned_by": "lmgym", "lmgym": about}

    @app.post("/v1/chat/completions")
    async def chat_completions(body: ChatCompletion, request: Request):
        asked = await asyncio.to_thread(read_completion, body, models)  # of a large body it takes seconds
        writer = Writer(models, asked)
        if not body.stream:
            return writer.whole(await models.run(answer, models, asked, request=request))
        job = asyncio.ensure_future(models.run(answer, models, asked, request=request))
        job.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # a client that left reads neither
        await asyncio.wait({job}, timeout=KEEP_ALIVE_SECONDS)
        if job.done():
            job.result()  # a failure before the first comment has a status of its own
        with_usage = bool(body.stream_options and body.stream_options.include_usage)
        events = _events(job, writer, with_usage)
        return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})

    @app.get("/v1/models")
    async def list_models():
        return {"object": "list", "data": [listing(name) for name in models.policies]}

    @app.get("/ready")
    async def ready():
        return {"status": "ready", "policies": list(models.policies), "scorers": list(models.judges)}

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str):
        return listing(models.find(name))


async def _events(job: "asyncio.Future[Answer]", writer: Writer, with_usage: bool) -> AsyncIterator[str]:
    """The stream's text: comments until the reply is chosen, then its chunks, or an error."""
    try:
        while not job.done():
            yield ": the replies are being generated and scored\n\n"
            await asyncio.wait({job}, timeout=KEEP_ALIVE_SECONDS)
        rows = writer.chunks(job.result(), with_usage)
    except Refusal as refusal:
        rows = [refusal.body]
    except InputError as error:
        rows = [Refusal(400, str(error)).body]
    finally:
        job.cancel()
    for row in rows:
        yield f"data: {json.dumps(row)}\n\n"
    yield "data: [DONE]\n\n"
