"""Where a server listens: checked and taken before anything is loaded."""

import socket

from lmgym.errors import InputError, one_line
from lmgym.generation.model_server import is_loopback


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
