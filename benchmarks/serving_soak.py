"""The reward server under good requests and every bad one: does it stay up, right, and of one size?

    .venv/bin/python benchmarks/serving_soak.py SCORER      # ten minutes; writes benchmarks/results/serving_soak.json

Good clients ask in three dialects and compare each score with that of `lmgym score`, to 1e-5. Beside them are clients
that send malformed bodies, bodies that drip, heads without an end, bodies that are too large, and nothing; clients that
leave before their answer; and reloads. The server's memory after a fifth of the time is compared with that at the end.
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from serving_load import ROOT, WORDS, memory_mb, start
from shared import describe_machine, write_result

GOOD_CLIENTS = 3
MOST_MB = 1
TOLERANCE = 1e-5
BROKEN_JSON = b'{"conversations": [[{"role": "user", "content": "'
CHAT = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
MALFORMED: tuple[bytes, ...] = (
    b"", b"{", b"null", b"[]", b"\xff\xfe", b"[" * 5000, b'{"conversations": ' + b"[" * 5000, BROKEN_JSON,
    b'{"conversations": [3, NaN, "", {}, []]}', b'{"conversations": [[{"role": "user"}]]}',
    b'{"conversations": "' + b"x" * 9999 + b'"}', b'{"query": [""], "prompts": 1e400}', b'{"input": ["\\ud800"]}',
    b'{"query": null}', b'{"input": {"a": 1}}', b'{"model": "x", "input": "User: a\\nBot: b"}', b"\x00" * 100,
    json.dumps({"conversations": [CHAT], "scorers": ["none"]}).encode(),
    json.dumps({"conversations": [CHAT * 5000]}).encode(), json.dumps({"conversations": [CHAT[:1]]}).encode(),
)  # fmt: skip
PATHS = ("/v1/score", "/get_reward", "/classify", "/v1/classify", "/v1/embeddings", "/none", "/runs", "/reload")


class Soak:
    """Clients of one server, and what they saw."""

    def __init__(self, port: int, seconds: float, chats: list[list[dict]], expected: list[float]) -> None:
        self.port, self.chats, self.expected = port, chats, expected
        self.end = time.monotonic() + seconds
        self.seen: Counter[str] = Counter()
        self.faults: list[str] = []
        self._lock = threading.Lock()

    def count(self, name: str, fault: str = "") -> None:
        """Adds to a counter, and keeps the first faults in words."""
        with self._lock:
            self.seen[name] += 1
            if fault and len(self.faults) < 20:
                self.faults.append(f"{name}: {fault}")

    def repeat(self, act: Callable[[random.Random], None], seed: int) -> None:
        """Acts until the time is over; a connection that the server closes is no fault of a bad client."""
        draw = random.Random(seed)
        while time.monotonic() < self.end:
            with contextlib.suppress(OSError, http.client.HTTPException):
                act(draw)

    def ask(self, path: str, body: bytes, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        """(status, JSON) of a request over a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request("POST", path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"null")
        finally:
            connection.close()

    def good(self, draw: random.Random) -> None:
        """A right request, whose scores must be those of `lmgym score`."""
        places = [draw.randrange(len(self.chats)) for _ in range(draw.choice((1, 1, 4, 16)))]
        chats = [self.chats[i] for i in places]
        run = {"X-LMGym-Run": f"run {draw.randrange(100)}", "X-LMGym-Step": str(int(time.monotonic()))}
        dialect = draw.choice(("score", "get_reward", "classify"))
        try:
            if dialect == "score":
                body = json.dumps({"conversations": chats}).encode()
                status, answer = self.ask("/v1/score", body, draw.choice((run, {})))
                found = [row["scorer"]["score"] for row in answer["scores"]] if status == 200 else []
            else:
                texts = [
                    "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in chat) for chat in chats
                ]
                name = "query" if dialect == "get_reward" else "input"
                status, answer = self.ask(f"/{dialect}", json.dumps({name: texts}).encode(), draw.choice((run, {})))
                rows = answer.get("rewards") or [row["probs"][0] for row in answer.get("data", ())]
                found = rows if status == 200 else []
        except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
            self.count("good_failed", repr(error))
            return
        if status == 503:
            self.count("good_refused_503")
        elif status != 200:
            self.count("good_failed", f"{status} {answer}")
        elif any(abs(a - self.expected[i]) > TOLERANCE for a, i in zip(found, places, strict=True)):
            self.count("good_wrong", f"{dialect} {found} for {[self.expected[i] for i in places]}")
        else:
            self.count("good_right")

    def malformed(self, draw: random.Random) -> None:
        """A body that is no request."""
        body = draw.choice((*MALFORMED, draw.randbytes(draw.randrange(1, 300))))
        status, answer = self.ask(draw.choice(PATHS), body)
        fault = status >= 500 and status != 503
        self.count("malformed_5xx" if fault else "malformed", f"{status} {answer} for {body[:80]!r}" if fault else "")
        time.sleep(0.05)

    def _send(self, *parts: bytes, pause: float = 0.0, read: bool = False) -> None:
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            for part in parts:
                connection.sendall(part)
                time.sleep(pause)
                if time.monotonic() > self.end:
                    return
            if read:
                connection.recv(1 << 16)

    def _head(self, length: int) -> bytes:
        return f"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode()

    def slow(self, draw: random.Random) -> None:
        """A body that comes byte by byte, and perhaps ends too late."""
        body = json.dumps({"conversations": [draw.choice(self.chats)]}).encode()
        self._send(self._head(len(body)), *(bytes([byte]) for byte in body), pause=draw.choice((0.01, 1.0)), read=True)
        self.count("slow")

    def endless(self, draw: random.Random) -> None:
        """A head without an end, slow or as fast as it goes."""
        lines = (f"X-{i}: {i}\r\n".encode() for i in range(1_000_000))
        try:
            self._send(b"POST /v1/score HTTP/1.1\r\n", *(next(lines) for _ in range(60)), pause=1.0)
            self._send(b"POST /v1/score HTTP/1.1\r\n", b"X: " + b"x" * 2**20)
        finally:
            self.count("endless_heads")

    def oversized(self, draw: random.Random) -> None:
        """More than the server takes, announced or in chunks."""
        if draw.random() < 0.5:
            self._send(self._head(2**40), b"x" * 2**16, read=True)
        else:
            chunk = b"40000\r\n" + b"x" * 2**18 + b"\r\n"
            head = b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            self._send(head, *[chunk] * (4 * MOST_MB + 2), read=True)
        self.count("oversized")
        time.sleep(0.2)

    def leaving(self, draw: random.Random) -> None:
        """A client that is gone before its answer, or that says nothing."""
        body = json.dumps({"conversations": [draw.choice(self.chats)] * 4}).encode()
        self._send(*((self._head(len(body)), body) if draw.random() < 0.8 else (b"",)))
        self.count("left")
        time.sleep(0.05)


def chats_to_score() -> list[list[dict]]:
    """Conversations of one to five turns, of every length up to beyond the scorer's."""
    draw, found = random.Random(0), []
    for number in range(40):
        turns = 2 * draw.randrange(1, 4)
        texts = [" ".join(draw.choices([*WORDS, "é", "日本", "🎉"], k=draw.choice((1, 8, 40)))) for _ in range(turns)]
        texts[0] = f"{number} {texts[0]}"
        found.append([{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)])
    return found


def scored(scorer: str, chats: list[list[dict]]) -> list[float]:
    """Scores of `lmgym score`."""
    with tempfile.TemporaryDirectory() as folder:
        rows, output = Path(folder, "rows.jsonl"), Path(folder, "scores.jsonl")
        rows.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
        command = [sys.executable, "-m", "lmgym", "score", scorer, str(rows), "--output", str(output)]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        return [json.loads(line)["score"] for line in output.read_text().splitlines()]


def soak(scorer: str, seconds: float) -> dict[str, Any]:
    """Figures of a server that is asked for so many seconds."""
    chats = chats_to_score()
    expected = scored(scorer, chats)
    process, port = start(scorer, "--max_body_mb", str(MOST_MB), "--timeout", "20")
    try:
        clients = Soak(port, seconds, chats, expected)
        bad = (clients.malformed, clients.slow, clients.slow, clients.endless, clients.oversized, clients.leaving)
        acts = [*[clients.good] * GOOD_CLIENTS, *bad]
        threads = [threading.Thread(target=clients.repeat, args=(act, seed)) for seed, act in enumerate(acts)]
        for thread in threads:
            thread.start()
        memory: list[float] = []
        while time.monotonic() < clients.end:
            time.sleep(seconds / 40)
            memory.append(memory_mb(process))
            if len(memory) % 5 == 3 and process.poll() is None:
                process.send_signal(signal.SIGHUP)
                clients.count("reloads")
        for thread in threads:
            thread.join()
        crashed = process.poll() is not None
        clients.good(random.Random(-1))  # it still answers
    finally:
        process.terminate()
        code = process.wait(600)
    warm, last = memory[len(memory) // 5], memory[-1]
    return {
        "seconds": seconds,
        **dict(sorted(clients.seen.items())),
        "faults": clients.faults,
        "crashed": crashed,
        "exit_code": code,
        "memory_mb": [round(value, 1) for value in memory],
        "memory_growth": round(last / warm - 1, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scorer", help="folder of a scorer")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/serving_soak.json")
    arguments = parser.parse_args()
    found = soak(arguments.scorer, arguments.seconds)
    found |= {"threads": os.environ.get("OMP_NUM_THREADS"), "machine": describe_machine()}
    write_result(arguments.output, found)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
