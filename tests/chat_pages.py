"""Chat servers with their page, in this process: scripted policies, or models in folders, over loopback."""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

from patience import PATIENCE

from lmgym.generation.protocol import Generator, Sampling, ScriptedGenerator
from lmgym.scoring.protocol import Scorer
from lmgym.scoring.scorers import FunctionScorer

WORDS = "the fern grows well in shade and wants water every day but never too much of it"


def rambling(name: str) -> ScriptedGenerator:
    """A policy whose replies are random words; each ends with the policy's name."""
    return ScriptedGenerator(lambda _, rng: " ".join([*rng.choice(WORDS.split(), int(rng.integers(3, 30))), name]))


def taste() -> dict[str, Scorer]:
    """Two scorers: the longer the better, and the more letters e the better."""
    return {
        "length": FunctionScorer(lambda c, r: [float(len(reply)) for reply in r]),
        "warmth": FunctionScorer(lambda c, r: [reply.count("e") / 10 for reply in r]),
    }


@dataclass
class Browser:
    """A client with cookies that asks as the page does."""

    url: str
    headers: dict[str, str] = field(default_factory=dict)
    jar: CookieJar = field(default_factory=CookieJar)
    csrf: str = ""

    def post(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """(status, JSON) of a request of the page; bytes are sent as they are."""
        content = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        own = {"X-CSRF-Token": self.csrf, **self.headers, **{k.replace("_", "-"): v for k, v in headers.items()}}
        request = urllib.request.Request(f"{self.url}/page/{path}", content, own, method="POST")
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.jar))
        try:
            with opener.open(request, timeout=PATIENCE) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def do(self, path: str, **body: Any) -> Any:
        """The answer of a request that succeeds."""
        status, found = self.post(path, body)
        assert status == 200, found
        return found

    def begin(self) -> Any:
        """The state of this browser's session, which begins."""
        state = self.do("state")
        self.csrf = state["csrf"]
        return state


@contextmanager
def serve_page(
    policies: Mapping[str, Generator],
    judges: Mapping[str, Scorer],
    folder: Path,
    token: str = "",
    sampling: Sampling | None = None,
) -> Iterator[str]:
    """The address of a server."""
    import uvicorn

    from lmgym.apps.chat.loading import model_revisions
    from lmgym.apps.serve.chat_app import make_chat_app
    from lmgym.apps.serve.chat_models import ChatModels, Defaults
    from lmgym.apps.serve.guard import Guard
    from lmgym.apps.serve.http_server import bind, url_of

    sampling = sampling or Sampling(max_new_tokens=16)
    weights = dict.fromkeys(list(judges)[:1], 1.0)
    defaults = Defaults(4, 16, dict.fromkeys(policies, sampling), weights)
    info = {
        "policies": {name: model_revisions(policy, {})["generator"] for name, policy in policies.items()},
        "scorers": {name: model_revisions(None, {name: judge})[name] for name, judge in judges.items()},
    }
    models = ChatModels({name: name for name in policies}, policies, judges, defaults, info=info)
    app = make_chat_app(models, folder)
    listener = bind("127.0.0.1", 0, token)
    listener.listen()
    server = uvicorn.Server(uvicorn.Config(Guard(app, models.metrics, (), token), log_level="error"))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    until = time.monotonic() + PATIENCE
    while not server.started and time.monotonic() < until:
        time.sleep(0.01)
    try:
        yield url_of(listener)
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        models.stop()
        listener.close()
