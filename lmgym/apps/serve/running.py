"""The server's process, from its scorers to its end."""

import asyncio
import signal
import socket
import threading
from collections.abc import Mapping

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from lmgym.apps.serve.address import url_of
from lmgym.apps.serve.app import make_app
from lmgym.apps.serve.guard import Guard
from lmgym.apps.serve.metrics import Metrics
from lmgym.apps.serve.served_scorers import ServedScorer
from lmgym.apps.serve.service import Limits, Service
from lmgym.console import say
from lmgym.scoring.combinations import is_combination
from lmgym.scoring.named_scorers import Precision

BACKLOG = 2048
HEAD_SECONDS = 30.0


class TimedProtocol(H11Protocol):
    """HTTP/1.1 over a connection that is closed if the head of a request takes too long: uvicorn waits forever."""

    _head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Waits for the first head."""
        super().connection_made(transport)
        self._time_head()

    def data_received(self, data: bytes) -> None:
        """Reads a part of a request."""
        super().data_received(data)
        self._time_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end of the connection."""
        super().connection_lost(exc)
        if self._head:
            self._head.cancel()

    def _time_head(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:  # a request has begun, whose body has a limit
            if self._head:
                self._head.cancel()
            self._head = None
        elif self._head is None:
            self._head = self.loop.call_later(HEAD_SECONDS, self.transport.close)


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


def serve_until_stopped(
    listener: socket.socket,
    app: FastAPI,
    metrics: Metrics,
    answers: str,
    token: str,
    max_body_mb: float,
    timeout: float,
) -> None:
    """Serves an application at a bound socket until SIGTERM or Ctrl-C, and then answers what came before that."""
    routes = {getattr(route, "path", "") for route in app.routes}
    config = uvicorn.Config(
        Guard(app, metrics, routes, token, int(max_body_mb * 2**20)),
        http=TimedProtocol,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        backlog=BACKLOG,
        timeout_graceful_shutdown=int(timeout) + 1,
    )
    server = uvicorn.Server(config)
    # uvicorn handles both while it serves, and raises them again at its end, which would end the process at once
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: setattr(server, "should_exit", True))
    listener.listen(BACKLOG)
    say(f"{url_of(listener)} {answers}; Ctrl-C stops")
    server.run([listener])


def describe(scorer: ServedScorer) -> str:
    """The contents of its answers, in words."""
    saved = [member.reference for member in scorer.members]
    known = {"z-scores": all(saved), "quantiles": all(one and one.quantiles for one in saved)}
    has_spread = len(saved) > 1 or is_combination(scorer.members[0].reduce)
    known |= {"spread": has_spread, "P(a beats b)": all(member.compares for member in scorer.members)}
    return "with " + ", ".join(["scores", *(name for name, has in known.items() if has)])
