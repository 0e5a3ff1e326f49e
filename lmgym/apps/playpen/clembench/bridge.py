"""The bridge to a game of clembench: a subprocess of an environment with clemcore, which plays many episodes at once.

clemcore's pins cannot be met beside ours, so it is never imported here: worker.py of this folder runs there.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from lmgym.apps.playpen.registries.keys import VARIABLES
from lmgym.apps.playpen.registries.specs import Spec
from lmgym.environments.worker_process import WorkerProcess
from lmgym.errors import InputError, one_line, shown_path
from lmgym.runs.user_code import distribution_of

WORKER = Path(__file__).with_name("worker.py")
VARIABLE = "LMGYM_CLEMCORE"
FOLDER = "outputs/clemcore"
TIMEOUT = 600.0  # seconds in which a game must load, and ask for a reply or end; loading one takes 5 to 10


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
        self.spec, self.python = spec, python or find_python()
        folder = Path(str(spec.get("game_path"))).absolute()
        if not (folder / "master.py").is_file():
            raise InputError(f"{spec.name} in {shown_path(folder)} has no master.py; needed: a whole checkout")
        command = [str(self.python), str(WORKER), str(folder), spec.name]
        self.process = WorkerProcess(
            spec.name, command, timeout, {"CLEM_DISABLE_BANNER": "1"}, private=VARIABLES.values()
        )
        self.versions: Mapping[str, Any] = self._loaded()

    def score(
        self, experiment: Mapping[str, Any], instance: Mapping[str, Any], interactions: Mapping[str, Any]
    ) -> Over:
        """The scores that the game's own scorer gives recorded interactions, or why it gives none."""
        order = {"experiment": experiment, "instance": instance, "interactions": interactions}
        found = self._next(self.process.new(), {"do": "score", **order})
        assert isinstance(found, Over), "a scorer asks for no reply"
        return found

    def start(
        self, experiment: Mapping[str, Any], instance: Mapping[str, Any], players: list[str], seed: int
    ) -> tuple[int, Asked | Over]:
        """(the number of a new episode, its first turn or end). `players` are models' names; "mock" plays by script."""
        number = self.process.new()
        order = {"experiment": experiment, "instance": instance, "players": players, "seed": seed}
        return number, self._next(number, {"do": "start", **order})

    def reply(self, episode: int, text: str) -> Asked | Over:
        """The next turn after a player's reply, or the end. Raises EpisodeFailed if the game does not go on."""
        # a lone surrogate, which UTF-8 cannot hold, becomes a question mark
        text = text.encode(errors="replace").decode()
        return self._next(episode, {"do": "reply", "text": text})

    def stop(self, episode: int) -> None:
        """End an episode early."""
        self.process.stop(episode)

    def close(self) -> None:
        """End the subprocess."""
        self.process.close()

    def __enter__(self) -> "Bridge":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self, episode: int, message: Mapping[str, Any]) -> Asked | Over:
        found = self.process.ask(episode, message)
        return Over(**found["over"]) if "over" in found else Asked(found["seat"], found["messages"])

    def _loaded(self) -> Mapping[str, Any]:
        found = self.process.ready()
        if found.get("ready"):
            return found["ready"]
        why = found.get("error", "")
        absent = re.search(r"No module named '(\w+)", why)
        needed = (
            f"{shown_path(self.python)} -m pip install {distribution_of(absent[1])}, or the whole checkout"
            if absent
            else "clembench at static/v1.0 with clemcore 2.5.2, or a pair that fits (docs/playpen.md)"
        )
        place = shown_path(self.spec.get("game_path"))
        raise InputError(f"{self.spec.name} of {place} does not load: {one_line(why, 400)}; needed: {needed}")
