"""The routes of the reward server: each dialect reads its own body and writes its own answer, and all score alike.

| path | who sends it |
|---|---|
| /get_reward | OpenRLHF's `--reward.remote_url` |
| /classify, /v1/classify | clients of vLLM and SGLang, verl's reward model under vLLM |
| /v1/embeddings | verl's reward model under SGLang |
| /v1/score | our client, which TRL, verl's custom rewards and verifiers call |
"""

import asyncio
import base64
import signal
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import Depends, FastAPI, Request
from fastapi.responses import HTMLResponse, PlainTextResponse

from lmgym.apps.serve.base_app import new_app
from lmgym.apps.serve.batcher import Verdict
from lmgym.apps.serve.bodies import (
    Classify,
    Embeddings,
    GetReward,
    Read,
    Score,
    Template,
    read_messages,
    read_score,
    read_texts,
)
from lmgym.apps.serve.guard import Refusal
from lmgym.apps.serve.http_server import serve_until_stopped
from lmgym.apps.serve.runs import read_asking
from lmgym.apps.serve.runs_page import runs_page
from lmgym.apps.serve.served_scorers import Opinion, ServedScorer
from lmgym.apps.serve.service import Limits, Service
from lmgym.console import say
from lmgym.errors import listed
from lmgym.scoring.combinations import is_combination
from lmgym.scoring.named_scorers import Precision

CLIENT = Path(__file__).with_name("lmgym_client.py")


def serve_rewards(
    listener: socket.socket, paths: Mapping[str, str], token: str, limits: Limits, precision: Precision = "auto"
) -> None:
    """Serves scorers at a bound socket until SIGTERM or Ctrl-C, and then answers what waits."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # while they load there is nothing to load again
    service = Service(paths, limits, precision)
    signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=service.reload, daemon=True).start())
    for name, scorer in service.scorers.items():
        say(f"{name}: fingerprint {scorer.info['fingerprint']}, {describe(scorer)}")
    app, answers = make_app(service, token), "answers /get_reward, /classify, /v1/embeddings and /v1/score"
    serve_until_stopped(listener, app, service.metrics, answers, token, limits.max_body_mb, limits.timeout)
    service.stop()
    say("stopped")


def describe(scorer: ServedScorer) -> str:
    """The contents of its answers, in words."""
    saved = [member.reference for member in scorer.members]
    known = {"z-scores": all(saved), "quantiles": all(one and one.quantiles for one in saved)}
    has_spread = len(saved) > 1 or is_combination(scorer.members[0].reduce)
    known |= {"spread": has_spread, "P(a beats b)": all(member.compares for member in scorer.members)}
    return "with " + ", ".join(["scores", *(name for name, has in known.items() if has)])


def make_app(service: Service, token: str) -> FastAPI:
    """The application; `token` is that of the server, without which nobody may reload over HTTP."""

    def gauges() -> dict[str, float]:
        return {"lmgym_queue_replies": service.waiting, "lmgym_queue_capacity": service.limits.queue}

    app = new_app("lmgym rewards", service.metrics, gauges)
    _add_dialects(app, service)
    _add_operations(app, service, token)
    return app


def _add_dialects(app: FastAPI, service: Service) -> None:
    """Routes that score."""
    watched = [Depends(read_asking)]

    @app.post("/get_reward", dependencies=watched)
    async def get_reward(body: GetReward, request: Request, model: str | None = None, template: Template | None = None):
        name, form = service.find(body.model or model), service.template(body.template, template)
        prompts = [body.prompts] if isinstance(body.prompts, str) else body.prompts or []
        read = read_texts(body.query, form, prompts)
        # OpenRLHF logs the others' scores beside the reward, unless the request names the one that it waits for
        names = [name] if body.model or model else [name, *service.paths]
        verdict = await service.judge(request, read, names)
        scores = [opinion.score for opinion in verdict.scored[name].opinions]
        answer = {"rewards": scores, "scores": scores, "extra_logs": _logs(verdict, name)}
        return answer | {"lmgym": _about(verdict, read, name)}

    @app.post("/classify", dependencies=watched)
    @app.post("/v1/classify", dependencies=watched)
    async def classify(body: Classify, request: Request, template: Template | None = None):
        name, form = service.find(body.model), service.template(body.template, template)
        if (body.input is None) == (body.messages is None):
            raise Refusal(400, "needed: input, or messages that end in a reply, and not both")
        read = read_messages(body.messages) if body.input is None else read_texts(body.input, form)
        verdict = await service.judge(request, read, [name])
        scorer, opinions = verdict.scored[name].scorer, verdict.scored[name].opinions
        activate = bool(body.use_activation or body.activation)  # a trainer needs the logit, which is the default here
        values = [scorer.activated(one) if activate else one.score for one in opinions]
        rows = [{"index": i, "label": "LABEL_0", "probs": [v], "num_classes": 1} for i, v in enumerate(values)]
        return _envelope("classify", body.model or name, rows, opinions) | {"lmgym": _about(verdict, read, name)}

    @app.post("/v1/embeddings", dependencies=watched)
    async def embeddings(body: Embeddings, request: Request, template: Template | None = None):
        name, form = service.find(body.model), service.template(body.template, template)
        read = read_texts(body.input, form)
        verdict = await service.judge(request, read, [name])
        opinions = verdict.scored[name].opinions
        rows = [
            {"object": "embedding", "index": i, "embedding": _embedded(one.score, body.encoding_format)}
            for i, one in enumerate(opinions)
        ]
        return _envelope("embd", body.model or name, rows, opinions) | {"lmgym": _about(verdict, read, name)}

    @app.post("/v1/score", dependencies=watched)
    async def score(body: Score, request: Request, template: Template | None = None):
        names = [service.find(name) for name in body.scorers] if body.scorers else list(service.paths)
        read = read_score(body, service.template(body.template, template))
        verdict = await service.judge(request, read, names, body.group_size)
        answer: dict[str, Any] = {}
        single = len(body.conversations)
        answer["scores"] = [_opinions(verdict, i) for i in range(single)]
        answer["pairs"] = [_pair(verdict, single + 2 * i) for i in range(len(body.pairs))]
        if request.state.asking:
            answer["warnings"] = verdict.warnings
        known = {name: one.scorer.info for name, one in verdict.scored.items()}
        return answer | {"template": read.template, "scorers": known}


def _add_operations(app: FastAPI, service: Service, token: str) -> None:
    """Routes for who runs the server."""

    @app.get("/ready")
    async def ready():
        if service.ended:
            raise Refusal(503, f"the thread of {listed(service.ended)} has ended; start the server again", 10)
        return {"status": "ready", "scorers": service.info}

    @app.get("/runs")
    async def runs():
        return {"runs": service.runs.as_json()}

    @app.get("/runs.html")
    async def page():
        # its first call makes the script of the charts, which takes seconds
        return HTMLResponse(await asyncio.to_thread(runs_page, service.runs.as_json()))

    @app.get("/version")
    async def version():
        return PlainTextResponse(service.runs.version)  # which the page asks for

    @app.get("/lmgym_client.py")
    async def client():
        return PlainTextResponse(CLIENT.read_text(encoding="utf-8"), media_type="text/x-python")

    @app.post("/reload")
    async def reload(force: bool = False):
        if not token:
            raise Refusal(403, "this server has no token; needed: one (--token), or kill -HUP with its process id")
        if not force:
            service.check_silent()
        if fault := await asyncio.to_thread(service.reload):
            raise Refusal(409, fault)
        return {"status": "reloaded", "scorers": service.info}


def _opinions(verdict: Verdict, place: int) -> dict[str, Any]:
    return {name: one.opinions[place].fields() for name, one in verdict.scored.items()}


def _pair(verdict: Verdict, place: int) -> dict[str, Any]:
    """Both opinions of each scorer, with the probability that a beats b where the scorer has one."""
    found: dict[str, Any] = {}
    for name, one in verdict.scored.items():
        first, second = one.opinions[place : place + 2]
        chance = one.scorer.probability(first, second)
        known = {} if chance is None else {"p_a_beats_b": chance}
        found[name] = {"a": first.fields(), "b": second.fields()} | known
    return found


def _logs(verdict: Verdict, name: str) -> dict[str, list[float]]:
    """Numbers that OpenRLHF logs: the same keys for every request, since it stacks them."""
    own = verdict.scored[name].opinions
    logs: dict[str, list[float]] = {"truncated": [float(one.is_truncated) for one in own]}
    logs["alarm"] = [float(bool(verdict.warnings))] * len(own)
    for scorer, scored in verdict.scored.items():
        if scorer != name:
            logs[scorer] = [one.score for one in scored.opinions]
        for key in ("z", "spread"):
            values = [getattr(one, key) for one in scored.opinions]
            if None not in values:
                logs[f"{scorer}/{key}"] = values
    return logs


def _about(verdict: Verdict, read: Read, name: str) -> dict[str, Any]:
    """Which weights gave the scores, how the texts were read, and what was left out of them."""
    scored = verdict.scored[name]
    truncated = [i for i, one in enumerate(scored.opinions) if one.is_truncated]
    about = {"scorer": name, **scored.scorer.info, "template": read.template, "truncated": truncated}
    return about | ({"warnings": verdict.warnings} if verdict.warnings else {})


def _envelope(kind: str, model: str, rows: list[dict[str, Any]], opinions: list[Opinion]) -> dict[str, Any]:
    """A list as OpenAI's and vLLM's servers send it."""
    tokens = sum(one.tokens or 0 for one in opinions)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}
    head = {"id": f"{kind}-{uuid.uuid4().hex}", "object": "list", "created": int(time.time()), "model": model}
    return head | {"data": rows, "usage": usage}


def _embedded(score: float, encoding: str) -> list[float] | str:
    """A vector of one number; in base64 as fp32, which OpenAI's client asks for."""
    return [score] if encoding == "float" else base64.b64encode(np.float32(score).tobytes()).decode()
