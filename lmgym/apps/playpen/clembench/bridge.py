"""The bridge to a game of clembench: a subprocess of an environment with clemcore, which plays many episodes at once.

clemcore's pins cannot be met beside ours, so it is never imported here: worker.py of this folder runs there, and lines
of JSON go over pipes. A reader thread hands each line to the episode that waits for it.
"""

import json
import os
import queue
import re
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, final

from lmgym.apps.playpen.playing import EpisodeFailed
from lmgym.apps.playpen.registries.keys import VARIABLES
from lmgym.apps.playpen.registries.specs import Spec
from lmgym.config import Range
from lmgym.errors import MOST_SECONDS, InputError, one_line, shown_path
from lmgym.runs.user_code import distribution_of

WORKER = Path(__file__).with_name("worker.py")
VARIABLE = "LMGYM_CLEMCORE"
FOLDER = "outputs/clemcore"
TIMEOUT = 600.0  # seconds in which a game must load, and ask for a reply or end; loading one takes 5 to 10
KEPT_ERRORS = 4000  # characters of stderr
PRIVATE = {*VARIABLES.values(), "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}


@dataclass(frozen=True)
class Asked:
    """A player's turn: the messages that it replies to."""

    seat: int
    """its number, from 1"""
    messages: list[dict[str, str]]


@dataclass(frozen=True)
class Over:
    """An episode that has ended: clembench's records, and the scores of the game's own scorer, or why it has none."""

    scores: Mapping[str, Any] | None
    interactions: Mapping[str, Any] | None
    requests: list[Any] | None
    error: str = ""
    """of the game itself"""
    scorer_error: str = ""


def find_python() -> Path:
    """The Python of the environment with clemcore. Raises InputError if there is none."""
    given = os.environ.get(VARIABLE, "")
    folder = Path(given or FOLDER).expanduser()
    for path in (folder, folder / "bin" / "python", folder / "Scripts" / "python.exe"):
        if path.is_file():
            return path.absolute()  # not resolved: the link is what makes it an environment's Python
    raise InputError(
        f"games of clembench need an environment with clemcore, and there is no {shown_path(folder)}; needed: "
        f"`lmgym playpen setup`, or its folder in {VARIABLE}"
    )


@final
class Bridge:
    """A game of clembench. Episodes are numbered by `start`, and each is used by one thread at a time."""

    def __init__(self, spec: Spec, python: Path | None = None, timeout: float = TIMEOUT) -> None:
        Range(0, MOST_SECONDS, above=True, hint="seconds").check("timeout", timeout)
        self.spec, self.timeout = spec, timeout
        folder = Path(str(spec.get("game_path"))).absolute()
        if not (folder / "master.py").is_file():
            raise InputError(f"{spec.name} in {shown_path(folder)} has no master.py; needed: a whole checkout")
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, queue.SimpleQueue] = {}
        self._general: queue.SimpleQueue = queue.SimpleQueue()
        self._errors = ""
        # clemcore searches the current folder for games, and writes its log there
        self._folder = tempfile.TemporaryDirectory(prefix="lmgym-clembench-")
        self.python = python or find_python()
        environment = {name: value for name, value in os.environ.items() if name not in PRIVATE}
        self._process = subprocess.Popen(
            [str(self.python), str(WORKER), str(folder), spec.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            cwd=self._folder.name,
            env={**environment, "CLEM_DISABLE_BANNER": "1", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
        )
        for target in (self._read, self._read_errors):
            threading.Thread(target=target, name=f"bridge to {spec.name}", daemon=True).start()
        self.versions: Mapping[str, Any] = self._answer("ready")

    def score(
        self, experiment: Mapping[str, Any], instance: Mapping[str, Any], interactions: Mapping[str, Any]
    ) -> Over:
        """The scores that the game's own scorer gives recorded interactions, or why it gives none."""
        number = self._new()
        order = {"experiment": experiment, "instance": instance, "interactions": interactions}
        found = self._next(number, {"do": "score", "episode": number, **order})
        assert isinstance(found, Over), "a scorer asks for no reply"
        return found

    def start(
        self, experiment: Mapping[str, Any], instance: Mapping[str, Any], players: list[str], seed: int
    ) -> tuple[int, Asked | Over]:
        """(the number of a new episode, its first turn or end). `players` are models' names; "mock" plays by script."""
        number = self._new()
        order = {"experiment": experiment, "instance": instance, "players": players, "seed": seed}
        return number, self._next(number, {"do": "start", "episode": number, **order})

    def reply(self, episode: int, text: str) -> Asked | Over:
        """The next turn after a player's reply, or the end. Raises EpisodeFailed if the game does not go on."""
        # a lone surrogate, which UTF-8 cannot hold, becomes a question mark
        text = text.encode(errors="replace").decode()
        return self._next(episode, {"do": "reply", "episode": episode, "text": text})

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

    def __enter__(self) -> "Bridge":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _new(self) -> int:
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = queue.SimpleQueue()
        return number

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin
        line = json.dumps(message)
        try:
            with self._lock:
                self._process.stdin.write(line + "\n")
                self._process.stdin.flush()
        except OSError as error:
            raise EpisodeFailed(self._why_ended()) from error

    def _next(self, episode: int, message: Mapping[str, Any]) -> Asked | Over:
        if episode not in self._waiting:
            raise EpisodeFailed(f"{self.spec.name}: the episode has ended")
        self._send(message)
        try:
            found = self._waiting[episode].get(timeout=self.timeout)
        except queue.Empty:
            self.stop(episode)
            raise EpisodeFailed(f"{self.spec.name} neither asked nor ended within {self.timeout:g} s") from None
        if found is None:
            raise EpisodeFailed(self._why_ended())
        if "over" in found:
            self._waiting.pop(episode, None)
            return Over(**found["over"])
        return Asked(found["seat"], found["messages"])

    def _answer(self, name: str) -> Mapping[str, Any]:
        try:
            found = self._general.get(timeout=self.timeout)
        except queue.Empty:
            found = {"error": f"no answer within {self.timeout:g} s"}
        if found is None or not found.get(name):
            why = self._why_ended() if found is None else found.get("error", "")
            absent = re.search(r"No module named '(\w+)", why)
            needed = (
                f"{shown_path(self.python)} -m pip install {distribution_of(absent[1])}, or the whole checkout"
                if absent
                else "clembench at static/v1.0 with clemcore 2.5.2, or a pair that fits (docs/playpen.md)"
            )
            place = shown_path(self.spec.get("game_path"))
            raise InputError(f"{self.spec.name} of {place} does not load: {one_line(why, 400)}; needed: {needed}")
        return found[name]

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

    def _why_ended(self) -> str:
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            code = None
        last = (self._errors.strip().splitlines() or ["no message"])[-1]
        return f"the process of {self.spec.name} ended with exit code {code}: {one_line(last)}"
