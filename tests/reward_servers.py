"""`lmgym serve rewards`, or another server, in a process of its own, and plain requests to it."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patience import PATIENCE


@dataclass
class RewardServer:
    """A server's process and its address."""

    process: subprocess.Popen
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

    def stop(self) -> int:
        """Asks it to end with SIGTERM; its exit code."""
        self.process.terminate()
        code = self.process.wait(PATIENCE)
        assert self.process.stdout
        self.process.stdout.close()
        return code


def start(*words: object, port: int = 0, kind: str = "rewards", **environment: str) -> RewardServer:
    """The server, once it says that it answers."""
    command = [sys.executable, "-m", "lmgym", "serve", kind, *map(str, words), "--port", str(port)]
    root = Path(__file__).parent.parent
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=root, env={**os.environ, "LMGYM_TOKEN": "", **environment}
    )
    assert process.stdout
    said: list[str] = []
    for line in process.stdout:
        said.append(line.rstrip())
        if " answers " in line:
            return RewardServer(process, line.split()[0], said)
    raise AssertionError(f"exit code {process.wait()}: {said}")


def _read(answer: Any) -> Any:
    text = answer.read().decode()
    try:
        return json.loads(text)
    except ValueError:
        return text
