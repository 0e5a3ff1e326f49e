"""Processes of `serving.py`, and what they were asked."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SERVING = Path(__file__).with_name("serving.py")


@dataclass(frozen=True)
class Server:
    """One name at a process of `serving.py`: where it is asked, and each request in the order in which it came."""

    url: str
    record: Path
    process: subprocess.Popen

    @property
    def requests(self) -> list[dict]:
        return [json.loads(line) for line in self.record.read_text().splitlines()] if self.record.exists() else []

    @property
    def seeds(self) -> list[int]:
        return [row["body"]["seed"] for row in self.requests]


class ServerProcess:
    """A process that serves any number of names; `stop` ends it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        command = [sys.executable, "-S", str(SERVING), str(folder)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout
        self.port = int(self.process.stdout.readline())

    def server(self, mode: str, number: int) -> Server:
        name = f"{mode}.{number}"
        return Server(f"http://127.0.0.1:{self.port}/{name}/v1", self.folder / f"{name}.jsonl", self.process)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout
        self.process.stdout.close()
