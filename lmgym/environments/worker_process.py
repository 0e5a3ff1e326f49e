"""A subprocess that plays episodes, many at once: environments of a library whose pins cannot be met beside ours.

It runs in an environment of its own, by a script that imports nothing of lmgym. Lines of JSON go over pipes; what the
script prints beside them is kept for the message if it ends. A reader thread hands each line to the episode that waits.
"""

import json
import os
import queue
import subprocess
import tempfile
import threading
from collections.abc import Collection, Mapping, Sequence
from itertools import count
from typing import Any, final

from lmgym.config import Range
from lmgym.environments.protocol import EpisodeFailed
from lmgym.errors import MOST_SECONDS, one_line

KEPT_ERRORS = 4000  # characters of stderr
PRIVATE = frozenset({"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"})
"""variables that would let another environment's Python find ours"""


@final
class WorkerProcess:
    """The subprocess. Episodes are numbered by `new`, and each is used by one thread at a time.

    `private` are variables of the environment that the subprocess does not get, beside those of Python.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        timeout: float,
        variables: Mapping[str, str] | None = None,
        private: Collection[str] = (),
    ) -> None:
        Range(0, MOST_SECONDS, above=True, hint="seconds").check("timeout", timeout)
        self.name, self.timeout = name, timeout
        self._numbers, self._lock = count(1), threading.Lock()
        self._waiting: dict[int, queue.SimpleQueue] = {}
        self._general: queue.SimpleQueue = queue.SimpleQueue()
        self._errors = ""
        self._folder = tempfile.TemporaryDirectory(prefix="lmgym-worker-")  # libraries leave files in the current one
        inherited = {key: value for key, value in os.environ.items() if key not in PRIVATE and key not in private}
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            cwd=self._folder.name,
            env={**inherited, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", **(variables or {})},
        )
        for target in (self._read, self._read_errors):
            threading.Thread(target=target, name=f"reader of {name}", daemon=True).start()

    @property
    def is_alive(self) -> bool:
        """False once it has ended."""
        return self._process.poll() is None

    def ready(self) -> Mapping[str, Any]:
        """The first message that belongs to no episode; {"error": why} if none comes in time, or the process ends."""
        try:
            found = self._general.get(timeout=self.timeout)
        except queue.Empty:
            return {"error": f"no answer within {self.timeout:g} s"}
        return {"error": self.why_ended()} if found is None else found

    def new(self) -> int:
        """The number of a new episode."""
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = queue.SimpleQueue()
        return number

    def ask(self, episode: int, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer to a message of an episode; one with the key "over" is the last.

        Raises EpisodeFailed if the episode has ended, the process has, or no answer comes in time.
        """
        if episode not in self._waiting:
            raise EpisodeFailed(f"{self.name}: the episode has ended")
        self._send({**message, "episode": episode})
        try:
            found = self._waiting[episode].get(timeout=self.timeout)
        except queue.Empty:
            self.stop(episode)
            raise EpisodeFailed(f"{self.name} neither asked nor ended within {self.timeout:g} s") from None
        if found is None:
            raise EpisodeFailed(self.why_ended())
        if "over" in found:
            self._waiting.pop(episode, None)
        return found

    def stop(self, episode: int) -> None:
        """End an episode early."""
        if self._waiting.pop(episode, None) is not None and self._process.poll() is None:
            self._send({"do": "stop", "episode": episode})

    def close(self) -> None:
        """End the subprocess."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._folder.cleanup()

    def why_ended(self) -> str:
        """The exit code and the last line of stderr."""
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            code = None
        last = (self._errors.strip().splitlines() or ["no message"])[-1]
        return f"the process of {self.name} ended with exit code {code}: {one_line(last)}"

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin
        line = json.dumps(message)
        try:
            with self._lock:
                self._process.stdin.write(line + "\n")
                self._process.stdin.flush()
        except OSError as error:
            raise EpisodeFailed(self.why_ended()) from error

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            message = json.loads(line)
            waiting = self._waiting.get(message["episode"]) if "episode" in message else self._general
            if waiting is not None:
                waiting.put(message)
        for waiting in [*self._waiting.values(), self._general]:
            waiting.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr
        for line in self._process.stderr:
            self._errors = (self._errors + line)[-KEPT_ERRORS:]
