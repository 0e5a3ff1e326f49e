"""Where a server listens, taken before anything is loaded, and an application served there; it imports no torch."""

import asyncio
import signal
import socket

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from lmgym.apps.serve.guard import Guard
from lmgym.apps.serve.metrics import Metrics
from lmgym.console import say
from lmgym.errors import InputError, one_line
from lmgym.generation.model_server import is_loopback

BACKLOG = 2048
HEAD_SECONDS = 30.0


def bind(host: str, port: int, token: str) -> socket.socket:
    """A socket at the address that does not listen yet: clients are refused, and try again, while the scorers load.

    Raises InputError for an address that others can reach without a token, and for one that cannot be had.
    """
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise InputError("the token has characters that a header cannot have; needed: visible ASCII alone")
    if not is_loopback(host) and not token:
        raise InputError(
            f"--host {one_line(host, 60)} can be reached from other machines, and there is no token; needed: a token "
            "in the environment variable LMGYM_TOKEN (or --token), or --host 127.0.0.1"
        )
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)  # without it asyncio keeps Nagle's delay: 40 ms an answer
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        why = error.strerror or str(error)
        needed = "an address of this machine with a free port, such as --port 0"
        raise InputError(f"{one_line(host, 60)}, port {port}: {why}; needed: {needed}") from error
    return listener


def url_of(listener: socket.socket) -> str:
    """The address of a socket that is bound."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


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
