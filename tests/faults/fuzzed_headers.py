"""A reward server that gets one request with odd headers, drawn by a number, and then a good one, which it must answer.

Ends with 0 if neither answer is 500 or late. The server is in this process; its scorer counts characters.
"""

import json
import os
import random
import select
import signal
import socket
import sys
import threading
import time

SECONDS, WAITS = 10, 1
TEXT = json.dumps({"prompts": ["hello"], "query": ["hello there"]}).encode()
NAMES = (
    "Host", "Origin", "Content-Length", "Content-Type", "Transfer-Encoding", "Authorization", "Accept", "Connection",
    "Cookie", "Expect", "Upgrade", "X-Forwarded-Host", "Referer", "Content-Encoding", "Range", "Accept-Encoding", "",
)  # fmt: skip
VALUES = (
    b"", b"[", b"[::1", b"http://[", b"http://[x]", b"http://a:b:c", b"-1", b"1e9", b"99999999999999999999", b"chunked",
    b"gzip", b"null", b"\xff\xfe", b"\x00", b"Bearer", b"Bearer " + b"x" * 9000, b"100-continue", b"h2c", b"*/*;q=x",
    b"localhost:99999", b"localhost:", b"a b", b"bytes=9-1", b"application/json; charset=\xe4", b"x" * 70_000, b"0x10",
    b"keep-alive, close", b"@", b"http://user:pass@host:port/", b"\xf0\x9f\x98\x80", b"1\r\nX: y", b"%00", b"..", b"+5",
)  # fmt: skip
METHODS = (b"POST", b"POST", b"POST", b"GET", b"OPTIONS", b"HEAD", b"PUT", b"\xff", b"")
PATHS = (
    b"/get_reward",
    b"/get_reward",
    b"/v1/score",
    b"/classify",
    b"/health",
    b"/reload",
    b"/runs",
    b"*",
    b"/%ff",
    b"",
)
GOOD = b"POST /get_reward HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"


def odd_request(rng: random.Random) -> bytes:
    """The bytes of a request."""
    headers = {b"Host": b"127.0.0.1", b"Content-Type": b"application/json", b"Content-Length": b"%d" % len(TEXT)}
    lines = [b"%s: %s" % pair for pair in headers.items()]
    for _ in range(rng.choice((1, 1, 2, 3))):
        line = rng.choice(NAMES).encode() + rng.choice((b": ", b":", b"")) + rng.choice(VALUES)
        lines.insert(rng.randrange(len(lines) + 1), line)
        if rng.random() < 0.5:
            name = line.partition(b":")[0]
            lines = [one for one in lines if one is line or one.partition(b":")[0] != name]
    begin = b"%s %s HTTP/1.%d" % (rng.choice(METHODS), rng.choice(PATHS), rng.choice((0, 1, 1, 1, 9)))
    return b"\r\n".join([begin, *lines, b"", TEXT])


def status_of(port: int, request: bytes) -> int:
    """That of the answer; 0 if the server closes without one, or waits for a body that does not come."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(SECONDS)
        connection.sendall(request)
        if not select.select([connection], [], [], WAITS)[0]:
            connection.shutdown(socket.SHUT_WR)  # the body is over, whatever the header said
        try:
            head = connection.recv(4096)
        except ConnectionError:
            return 0
    return int(head.split()[1]) if head.startswith(b"HTTP/") else 0


def main(number: str) -> int:
    """One case."""
    from lmgym.apps.serve.app import serve_rewards
    from lmgym.apps.serve.service import Limits

    with open("scorer.py", "w", encoding="utf-8") as file:
        file.write("def characters(conversations, replies):\n    return [float(len(str(r))) for r in replies]\n")
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    found: list[int] = []

    def ask() -> None:
        for request in (odd_request(random.Random(f"headers {number}")), GOOD % (len(TEXT), TEXT)):
            until = time.monotonic() + SECONDS
            try:
                found.append(status_of(port, request))
            except OSError:
                found.append(599)
            if time.monotonic() > until:
                found[-1] = 598
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=ask, daemon=True).start()
    serve_rewards(listener, {"characters": "scorer.py:characters"}, "", Limits())
    print("answers:", *found)
    return int(found[0] >= 500 or found[1:] != [200])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
