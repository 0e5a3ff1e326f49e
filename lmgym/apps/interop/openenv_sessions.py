"""Sessions of an OpenEnv server: JSON over a WebSocket, one for each episode; and what it says of itself over HTTP.

The package's own client is not used: after a lost connection it takes the next step in a new session, whose environment
was never reset, and gives that reward (openenv 0.10). It also imports 2,400 modules, in 3 CPU seconds; the protocol has
four messages.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, final
from urllib.parse import urlsplit

from lmgym.errors import InputError, one_line, shown
from lmgym.generation.model_server import is_loopback, parse_address

TOKEN = "LMGYM_TOKEN"
MOST_BYTES = 100 * 2**20
CLOSING_SECONDS = 2.0
NEEDED = "needed: the address of an OpenEnv server that runs, such as openenv:http://127.0.0.1:8000"


class Lost(Exception):
    """The connection cannot be made, or has ended."""


class Hangs(Exception):
    """There is no answer within the time limit."""


class Refused(Exception):
    """The server's answer is an error; `code` is one of its own, such as CAPACITY_REACHED."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@final
class Server:
    """An address. Raises InputError for one that is no plain one, and for a token that would travel unencrypted."""

    def __init__(self, address: str, timeout: float) -> None:
        url = address if "://" in address else f"http://{address}"
        self.url = url.replace("ws", "http", 1).rstrip("/") if url.startswith("ws") else url.rstrip("/")
        self.timeout = timeout
        try:
            parts = parse_address(self.url)
        except InputError:
            raise InputError(
                f"the address of an OpenEnv server is no plain one; {NEEDED} (a token goes into the environment "
                f"variable {TOKEN})"
            ) from None
        self.is_local = is_loopback(parts.hostname or "")
        token = os.environ.get(TOKEN, "").strip()
        if token and parts.scheme == "http" and not self.is_local:
            raise InputError(f"{self.url} is not encrypted and {TOKEN} holds a token; needed: https, or no {TOKEN}")
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    def get(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON that a GET gives, or with a body a POST; None if the server does not have it.

        Raises InputError if nothing answers, or something else than an OpenEnv server.
        """
        import httpx

        words = f"openenv:{self.url}"
        try:
            # the proxies of the environment are for other machines
            with httpx.Client(headers=self.headers, timeout=self.timeout, trust_env=not self.is_local) as client:
                answer = client.get(self.url + path) if body is None else client.post(self.url + path, json=body)
        except httpx.HTTPError as error:
            raise InputError(f"{words} does not answer ({one_line(str(error), 80)}); {NEEDED}") from error
        if answer.status_code in (HTTPStatus.NOT_FOUND, HTTPStatus.NOT_IMPLEMENTED, HTTPStatus.METHOD_NOT_ALLOWED):
            return None
        if answer.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise InputError(f"{words} refuses ({answer.status_code}); needed: its token in the variable {TOKEN}")
        try:
            if answer.status_code == HTTPStatus.OK:
                return answer.json()
        except ValueError:
            pass
        found = f"{path} gives {answer.status_code} {shown(answer.text)}"
        raise InputError(f"{words} is no OpenEnv server: {found}; {NEEDED}")

    def open(self) -> "Session":
        """A new session. Raises Lost if the server cannot be reached."""
        return Session(self)


@final
class Session:
    """One connection, which has an environment of its own on the server."""

    def __init__(self, server: Server) -> None:
        from websockets.exceptions import ConnectionClosed, WebSocketException
        from websockets.sync.client import connect

        self.server, self._ended = server, (ConnectionClosed, OSError)
        parts = urlsplit(server.url)
        address = parts._replace(scheme={"http": "ws", "https": "wss"}[parts.scheme], path=parts.path + "/ws").geturl()
        try:
            self._socket = connect(
                address,
                open_timeout=server.timeout,
                ping_timeout=None,  # an environment may keep its server busy: `timeout` is the limit
                close_timeout=CLOSING_SECONDS,
                max_size=MOST_BYTES,
                additional_headers=server.headers,
                proxy=None if server.is_local else True,
            )
        except (OSError, WebSocketException) as error:
            raise Lost(one_line(str(error) or type(error).__name__, 100)) from error

    def ask(self, kind: str, data: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The data of the answer to a message. Raises Lost, Hangs or Refused; after the first two it is closed."""
        message = {"type": kind} if data is None else {"type": kind, "data": data}
        try:
            with suppress(*self._ended):  # a server that is full says so and closes: what it said is read below
                self._socket.send(json.dumps(message))
            answer = json.loads(self._socket.recv(timeout=self.server.timeout))
        except TimeoutError:
            self.close()
            raise Hangs(f"{self.server.url} has not answered for {self.server.timeout:g} s") from None
        except self._ended as error:
            raise Lost(one_line(str(error), 100)) from error
        found = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(found, dict):
            raise Refused("", f"an answer that makes no sense: {shown(answer)}")
        if answer.get("type") == "error":
            raise Refused(str(found.get("code", "")), _words_of(found))
        return found

    def close(self) -> None:
        """End the session: the server has room for another one, if it answers."""
        with suppress(*self._ended):
            self._socket.send(json.dumps({"type": "close"}))
            self._socket.recv(timeout=CLOSING_SECONDS)  # the server closes once its environment is gone
        self._socket.close()


def _words_of(error: Mapping[str, Any]) -> str:
    """An error's message, with what was wrong in the fields of an action."""
    wrong = [one for one in error.get("errors") or () if isinstance(one, dict)]
    parts = [f"{'.'.join(map(str, one.get('loc', ())))}: {one.get('msg', '')}" for one in wrong]
    return one_line("; ".join([str(error.get("message", "")), *parts]), 300)
