"""Processes of `vllm_stub.py`, as a fixture's value."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

STUB = Path(__file__).with_name("vllm_stub.py")


class VLLMStub:
    """A server of a model's folder, with the faults that `lies` name."""

    def __init__(self, model: Path, *lies: str) -> None:
        self.model, self.lies, self.port = model, lies, 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def engine(self) -> str:
        return f"vllm:{self.url}"

    def tell(self, *lies: str) -> "VLLMStub":
        """The same process as a new server, with other faults."""
        data = json.dumps(lies).encode()
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/lies", data, method="POST")).close()
        return self

    def start(self) -> None:
        """Starts it, again at the same address."""
        command = [sys.executable, str(STUB), str(self.model), *self.lies]
        environment = {**os.environ, "PORT": str(self.port), "PYTHONPATH": str(STUB.parents[1])}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout
        self.port = int(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout
        self.process.stdout.close()
