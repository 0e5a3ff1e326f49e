"""HTTP requests that another thread can end at once, and the addresses and headers that they need.

http.client rather than urllib: its sockets can be shut down from another thread, which is how Ctrl-C and deadlines end
a request; and it follows no redirects, which would carry the key along.
"""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ipaddress import ip_address
from socket import SHUT_RDWR, create_connection, socket
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from lmgym.errors import InputError, one_line, shown

MAX_RETRY_AFTER = 30.0  # seconds of a Retry-After header that are respected
MAX_BYTES = 64 << 20
DEFAULT_PORTS = {"http": 80, "https": 443}
T = TypeVar("T")


class RequestFailed(Exception):
    """A request that failed and may be repeated, after `wait` seconds if the server asked for that."""

    def __init__(self, message: str, wait: float = 0.0) -> None:
        super().__init__(message)
        self.wait = wait


class Connections:
    """Open connections, all of which `close` ends from any thread."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self._open: set[socket] = set()
        self._lock = threading.Lock()

    def post(self, url: SplitResult, body: bytes, headers: dict[str, str], timeout: float) -> tuple[int, Any, bytes]:
        """(status, headers, body). Raises RequestFailed if the connection breaks or `timeout` seconds have passed."""
        connection_class = HTTPSConnection if url.scheme == "https" else HTTPConnection
        connection = connection_class(url.hostname or "", url.port, timeout=timeout)
        deadline = time.monotonic() + timeout
        try:
            connection.connect()
            with self._registered(connection.sock, deadline):
                connection.request("POST", url.path, body, headers)
                response = connection.getresponse()
                data = response.read(MAX_BYTES)
            if time.monotonic() >= deadline:
                raise TimeoutError  # http.client takes an answer that was cut short for a whole one
            return response.status, response.headers, data
        except (OSError, HTTPException) as error:
            late = isinstance(error, TimeoutError) or time.monotonic() >= deadline
            message = f"no answer within {timeout=:g} s" if late else f"{type(error).__name__}: {error}"
            raise RequestFailed(message) from None
        finally:
            connection.close()

    @contextlib.contextmanager
    def _registered(self, connection: socket, deadline: float) -> Iterator[None]:
        # needed beside the socket's own timeout, which starts over with every byte that arrives
        timer = threading.Timer(max(deadline - time.monotonic(), 0), _shut_down, [connection])
        timer.daemon = True
        timer.start()
        with self._lock:
            self._open.add(connection)
            if self.closed.is_set():
                _shut_down(connection)
        try:
            yield
        finally:
            timer.cancel()
            with self._lock:
                self._open.discard(connection)

    def close(self) -> None:
        """End all requests and waits; the server sees its connections close and can stop generating."""
        with self._lock:
            self.closed.set()
            for connection in self._open:
                _shut_down(connection)


def repeat(connections: Connections, attempt: Callable[[], T], retries: int, first: float, longest: float) -> T:
    """The result of an attempt, made up to `retries` times more while it raises RequestFailed; raises the last one.

    The wait before the second attempt is `first` seconds, doubled for each further one up to `longest`, or what the
    server asks for if that is more.
    """
    last = RequestFailed("not sent")
    for tries in range(retries + 1):
        if tries:
            connections.closed.wait(max(min(first * 2 ** (tries - 1), longest), last.wait))
        if connections.closed.is_set():
            break
        try:
            return attempt()
        except RequestFailed as failure:
            last = failure
    raise last


def _shut_down(connection: socket) -> None:
    with contextlib.suppress(OSError):  # closed already
        socket.shutdown(connection, SHUT_RDWR)  # not SSLSocket.shutdown, which drops the object that its reader uses


def parse_address(base_url: str, path: str) -> SplitResult:
    """The address to post to. Raises InputError, without repeating the address, which may contain a secret."""
    with contextlib.suppress(ValueError):
        url = urlsplit(base_url + path)
        host = (url.hostname or "").encode("idna")
        is_http = url.scheme in ("http", "https") and host and url.port != 0
        if is_http and "@" not in url.netloc and re.fullmatch("[!-~]+", base_url) and not re.search("[?#]", base_url):
            return url
    raise InputError(
        "base_url is no plain address; needed: such as http://localhost:8000/v1, without a name, password or query "
        "(a key goes into the environment variable that key_variable names)"
    )


def refuse_unreachable(base_url: str, model: str, seconds: float = 10.0) -> None:
    """Raises InputError if nothing listens at an address, before anything is asked of it."""
    url = urlsplit(base_url)
    try:
        create_connection((url.hostname or "", url.port or DEFAULT_PORTS[url.scheme]), timeout=seconds).close()
    except OSError as error:
        why = error.strerror or str(error) or type(error).__name__
        raise InputError(
            f"{one_line(base_url, 120)} cannot be reached ({one_line(why, 60)}); needed: a server of "
            f"{shown(model, 40)} there, or another base_url"
        ) from error


def is_loopback(host: str) -> bool:
    """True if the host is this machine."""
    with contextlib.suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def parse_retry_after(header: str) -> float:
    """Seconds from now that a Retry-After header asks for, at most MAX_RETRY_AFTER; 0 if it cannot be read."""
    with contextlib.suppress(ValueError):
        try:
            wait = float(header)
        except ValueError:
            wait = parsedate_to_datetime(header).timestamp() - time.time()
        return min(max(wait, 0.0), MAX_RETRY_AFTER)
    return 0.0
