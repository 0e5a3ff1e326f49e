"""An application served over HTTP until its process is asked to stop; it imports no torch."""

import asyncio
import signal
import socket

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from lmgym.apps.serve.address import url_of
from lmgym.apps.serve.guard import Guard
from lmgym.apps.serve.metrics import Metrics
from lmgym.console import say

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
        is_socket = self.transport.get_protocol() is not self  # a WebSocket, which stays open
        if is_socket or (self.cycle is not None and not self.cycle.response_complete):  # or a body, which has a limit
            if self._head:
                self._head.cancel()
            self._head = None
        elif self._head is None:
            self._head = self.loop.call_later(HEAD_SECONDS, self.transport.close)


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
