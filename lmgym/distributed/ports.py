"""A port at which ranks meet."""

import errno
import random
import socket
from contextlib import suppress
from pathlib import Path

OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""the ports that Linux gives to outgoing connections"""


def free_port() -> int:
    """A port that is free now and that no outgoing connection is given before the ranks have imported their libraries.

    Launchers default to 29500, on which two runs of a machine would collide. Raises OSError if no port is free.
    """
    below = range(10_000, int(OUTGOING.read_text().split()[0]))
    # not of the seeded generator: runs with the same seed would meet
    chosen = random.SystemRandom().sample(below, min(100, len(below)))
    for port in (*chosen, 0):  # 0: any
        with suppress(OSError), socket.socket() as free:
            free.bind(("127.0.0.1", port))
            return int(free.getsockname()[1])
    raise OSError(errno.EADDRINUSE, "no port is free on 127.0.0.1")
