"""Processes of `vllm_stub.py`, as a fixture's value."""

import json
import urllib.request
from pathlib import Path

from launching import finish, launch, start
from patience import wait_until

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
        self.launched = start(launch("fork", self.model, *self.lies, script=STUB), PORT=str(self.port))
        wait_until(lambda: self._said().endswith("\n") or self.launched.process.poll() is not None)
        self.port = int(self._said())

    def kill(self) -> None:
        self.launched.process.kill()
        finish(self.launched)

    def _said(self) -> str:
        self.launched.stdout.seek(0)
        return self.launched.stdout.read()
