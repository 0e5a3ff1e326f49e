"""`lmgym serve rewards`, or another server, in a process of its own, and plain requests to it."""

import json
import os
import signal
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launching import BIN, Launched, finish, launch
from launching import start as start_process
from patience import PATIENCE


@dataclass
class RewardServer:
    """A server's process and its address."""

    launched: Launched
    url: str
    said: list[str]
    """lines that it printed before it was ready"""

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def ask(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any, Any]:
        """(status, JSON, headers) of a GET, or with a body (an object, or bytes) of a POST."""
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, content, {k.replace("_", "-"): v for k, v in headers.items()})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, _read(answer), answer.headers
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _read(error), error.headers

    def counted(self, name: str) -> float:
        """A counter's sum over its labels."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=PATIENCE) as answer:
            rows = [line.rpartition(" ") for line in answer.read().decode().splitlines()]
        return sum(float(value) for key, _, value in rows if key.partition("{")[0] == name)

    def send(self, *signals: int) -> None:
        """Signals to its process, in this order."""
        for number in signals:
            os.kill(self.launched.process.pid, number)

    def wait(self) -> int:
        """Its exit code, once it has ended; may be asked again."""
        if not self.launched.stdout.closed:
            finish(self.launched)
        code = self.launched.process.returncode
        assert code is not None
        return code

    def stop(self, *signals: int) -> int:
        """Asks it to end, with SIGTERM if no other signals are named; its exit code."""
        if self.launched.process.poll() is None:
            self.send(*(signals or (signal.SIGTERM,)))
        return self.wait()


def start(
    *words: object,
    port: int = 0,
    kind: str = "rewards",
    launcher: str = "fork",
    script: Path = BIN / "lmgym",
    **environment: str,
) -> RewardServer:
    """The server, once it says that it answers; with the launcher "python" it starts as a user's."""
    command = launch(launcher, "serve", kind, *words, "--port", port, script=script)
    launched = start_process(command, **{"LMGYM_TOKEN": "", **environment})
    said: list[str] = []
    until = time.monotonic() + PATIENCE
    while launched.process.poll() is None and time.monotonic() < until:
        # without a seek: a process that was started shares the place at which it writes
        said = os.pread(launched.stdout.fileno(), 1 << 20, 0).decode().split("\n")[:-1]
        if said and " answers " in said[-1]:
            return RewardServer(launched, said[-1].split()[0], said)
        time.sleep(0.02)
    done = finish(launched, 0)
    raise AssertionError(f"exit code {done.returncode}: {done.stdout} {done.stderr}")


def _read(answer: Any) -> Any:
    text = answer.read().decode()
    try:
        return json.loads(text)
    except ValueError:
        return text
