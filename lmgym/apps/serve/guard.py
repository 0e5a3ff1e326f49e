"""Checks of a request before any route sees it: who sent it, and that its body is small, whole and UTF-8."""

import asyncio
import base64
import hmac
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from lmgym.apps.serve.metrics import Metrics
from lmgym.errors import shown
from lmgym.generation.model_server import is_loopback

SCRIPTS = ("page.js", "page_parts.js", "page_requests.js", "page_replies.js", "page_lists.js", "label.js")
PAGE_FILES = tuple(f"/page/{name}" for name in ("page.css", "label.css", *SCRIPTS))
OPEN = ("/health", "/ready", "/lmgym_client.py", "/", *PAGE_FILES)
"""paths that need no token; the page asks for it itself"""
PASSWORD_PAGES = ("/runs.html",)
BODY_SECONDS = 30.0
KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 503: "unavailable"}


class Refusal(Exception):
    """An answer without a result: its status, words, and seconds after which to try again."""

    def __init__(self, status: int, message: str, retry_after: int | None = None, kind: str = "") -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after
        self.kind = kind or KINDS.get(status, "invalid_request_error")
        self.more: dict[str, Any] = {}
        """further fields of the error"""

    @property
    def body(self) -> dict[str, Any]:
        """As OpenAI's and vLLM's servers send it."""
        return {"error": {"message": str(self), "type": self.kind, "code": self.status} | self.more}

    def answer(self, **headers: str) -> JSONResponse:
        """The response, with Retry-After where trying again helps, and further headers."""
        again = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return JSONResponse(self.body, self.status, again | headers)


@dataclass
class Guard:
    """ASGI middleware. The body is read here, and given to the application whole."""

    app: Any
    metrics: Metrics
    paths: Collection[str]
    """those of the routes, which metrics may name"""
    token: str = ""
    """needed in the header Authorization; without one only this machine's own names are answered"""
    most_bytes: int = 16 * 2**20
    body_seconds: float = BODY_SECONDS

    async def __call__(self, scope: dict, receive: Any, send: Any) -> None:
        """Answers a request, or refuses it."""
        if scope["type"] == "websocket":
            await self._open_socket(scope, receive, send)
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, statuses = time.monotonic(), [0]

        async def noting(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses[0] = message["status"]
            await send(message)

        path = scope["path"] if scope["path"] in self.paths else "other"
        try:
            headers = Headers(scope=scope)
            self._check_sender(scope["path"], headers)
            body = await self._read_body(headers, receive)
            scope["headers"] = [*(h for h in scope["headers"] if h[0] != b"content-type"), (b"content-type", JSON)]
            await self.app(scope, _replayed(body, receive), noting)
        except Refusal as refusal:
            # of a page a browser asks for the token itself, as the password
            scheme = "Basic realm=lmgym" if path in PASSWORD_PAGES else "Bearer"
            challenge = {"WWW-Authenticate": scheme} if refusal.status == 401 else {}
            await refusal.answer(Connection="close", **challenge)(scope, receive, noting)
        except _Gone:
            self.metrics.add("lmgym_abandoned_total")
        except asyncio.CancelledError:  # by a second Ctrl-C; uvicorn would answer 500, with a traceback each
            if not statuses[0]:
                stops = Refusal(503, "the server stops; try again", 5)
                await stops.answer(Connection="close")(scope, receive, noting)
        finally:
            self.metrics.add("lmgym_requests_total", path=path, status=str(statuses[0]))
            self.metrics.add("lmgym_request_seconds_total", time.monotonic() - began, path=path)

    async def _open_socket(self, scope: dict, receive: Any, send: Any) -> None:
        """Lets a WebSocket begin, or refuses it with the status 403."""
        try:
            self._check_sender(scope["path"], Headers(scope=scope))
        except Refusal:
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        await self.app(scope, receive, send)

    def _check_sender(self, path: str, headers: Headers) -> None:
        """Raises Refusal for a malformed address, a wrong token, and a request that a page of another site makes."""
        host, origin = headers.get("host", ""), headers.get("origin")
        name, _ = _parse("Host", f"//{host}")
        if not self.token and not is_loopback(name):
            raise Refusal(403, "the Host header is not this machine's; needed: 127.0.0.1 or localhost, or a token")
        if origin is not None and _parse("Origin", origin)[1] != host:
            raise Refusal(403, "the request comes from a page of another site; needed: one from this address")
        is_known = hmac.compare_digest(_given_token(headers.get("authorization", "")), self.token.encode())
        if self.token and path not in OPEN and not is_known:
            raise Refusal(401, "no token, or a wrong one; needed: the header Authorization: Bearer TOKEN")

    async def _read_body(self, headers: Headers, receive: Any) -> bytes:
        """The whole body. Raises Refusal if it is too large, takes too long or is not UTF-8."""
        too_large = f"the body is larger than {self.most_bytes:,} bytes; needed: smaller requests, or --max_body_mb"
        announced = headers.get("content-length", "0")
        if announced.isdecimal() and int(announced) > self.most_bytes:
            raise Refusal(413, too_large)
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Gone
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self.most_bytes:
                        raise Refusal(413, too_large)
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            raise Refusal(408, f"the body did not arrive within {self.body_seconds:g} s; send it whole") from None
        body = b"".join(parts)
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise Refusal(400, f"the body is not UTF-8 (byte {error.start:,}); needed: JSON in UTF-8") from None
        return body


JSON = b"application/json"  # clients may leave it out, as curl -d does


class _Gone(Exception):
    """The client left before its request was whole."""


async def answered(answer: asyncio.Future, request: Any, timeout: float) -> bool:
    """True once there is an answer, False after so many seconds.

    Raises Refusal if the client of the request, whose body was read, leaves before; None: nobody can leave.
    """
    gone = None if request is None else asyncio.ensure_future(_until_gone(request))
    waited = {answer} if gone is None else {answer, gone}
    try:
        done, _ = await asyncio.wait(waited, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if gone is not None:
            gone.cancel()
    if gone in done and answer not in done:
        raise Refusal(503, "the client left", 1)
    return answer in done


async def _until_gone(request: Any) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _replayed(body: bytes, receive: Any) -> Any:
    """A `receive` that gives the body, and then what comes, which is the client's leave."""
    first = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Any:
        return first.pop() if first else await receive()

    return replay


def _parse(header: str, address: str) -> tuple[str, str]:
    """(the name of the host, with its port as it is written) of an address. Raises Refusal for a malformed one."""
    try:
        parts = urlsplit(address)
        _ = parts.port  # which raises for what is no port
        return parts.hostname or "", parts.netloc
    except ValueError:
        found = shown(address.removeprefix("//"), 60)
        raise Refusal(400, f"the header {header} is {found}; needed: HOST:PORT of this server") from None


def _given_token(header: str) -> bytes:
    """The token of an Authorization header; empty if it has none."""
    scheme, _, given = header.partition(" ")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(given.strip()).partition(b":")[2]
        except ValueError:
            return b""
    return given.strip().encode() if scheme.lower() == "bearer" else b""
