"""`--environment verifiers:NAME?setting=value`: an environment package of verifiers 0.4.

verifiers needs other versions of our packages, so that it runs in an environment and a process of its own
(verifiers_worker.py). Its rewards come at the end of an episode, and are those of the last reply.
"""

import atexit
import json
import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, final

from lmgym.environments.named import NamedEnvironment, Scheme, Settings
from lmgym.environments.protocol import EpisodeFailed, Observation, StepResult, Task
from lmgym.environments.worker_process import WorkerProcess
from lmgym.errors import InputError, one_line, shown, shown_path
from lmgym.messages import from_messages
from lmgym.runs import paths
from lmgym.shell import command

WORKER = Path(__file__).with_name("verifiers_worker.py")
VARIABLE, TESTED = "LMGYM_VERIFIERS", "0.4"
TIMEOUT = 600.0
"""seconds in which an environment must load, and ask for a reply or end"""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./@-]*")


def environment_folder() -> Path:
    """$LMGYM_VERIFIERS, or the folder that `lmgym env setup verifiers` makes; it need not exist."""
    return paths.environment_folder(VARIABLE, "verifiers")


def missing() -> str:
    """The command that makes the environment; empty if it is there."""
    return "" if (environment_folder() / "bin/python").is_file() else command("lmgym", "env", "setup", "verifiers")


@final
class Source:
    """One environment: its process, which is started again if it has ended."""

    def __init__(self, name: str, settings: Settings, timeout: float) -> None:
        self.name, self.settings, self.timeout = name, settings, timeout
        self._lock = Lock()
        self.process, self.found = self._start()
        atexit.register(self.close)

    def live(self) -> WorkerProcess:
        """The process. Raises EpisodeFailed if it has ended and does not start again."""
        with self._lock:
            if not self.process.is_alive:
                self.close()
                try:
                    self.process, self.found = self._start()
                except InputError as error:
                    raise EpisodeFailed(str(error)) from error
            return self.process

    def close(self) -> None:
        """End the process."""
        self.process.close()

    def _start(self) -> tuple[WorkerProcess, Mapping[str, Any]]:
        python = environment_folder() / "bin/python"
        if needed := missing():
            raise InputError(
                f"verifiers:{self.name} needs an environment with verifiers {TESTED}, and {shown_path(python)} is not "
                f"there; needed: {needed} PACKAGE, or its folder in {VARIABLE}"
            )
        words = [str(python), "-P", str(WORKER), self.name, json.dumps(self.settings)]
        process = WorkerProcess(f"verifiers:{self.name}", words, self.timeout)
        found = process.ready()
        if "ready" not in found:
            process.close()
            setup = command("lmgym", "env", "setup", "verifiers")
            raise InputError(
                f"verifiers:{self.name} does not load: {one_line(found['error'], 400)}; needed: a package that exports "
                f"a Taskset of verifiers {TESTED}, installed by `{setup} PACKAGE`"
            )
        return process, found["ready"]


@final
class VerifiersEpisode:
    """One episode; the task is {"number": place in the taskset}. The agents are those of the environment.

    If the process ends, the episode is begun again in a new one, and goes on if it asks the same as before. `info`: the
    rewards by name, and the metrics.
    """

    blocking = True

    def __init__(self, source: Source) -> None:
        self.source, self.process, self.number = source, source.process, 0
        self.start: dict[str, Any] = {}
        self.asked: list[Mapping[str, Any]] = []
        self.replies: list[str] = []

    def reset(self, task: Task, seed: int) -> Mapping[str, Observation]:
        """The first messages. Raises EpisodeFailed if there are none."""
        self.process.stop(self.number)
        self.start, self.asked, self.replies = {"do": "start", "task": task["number"], "seed": seed}, [], []
        result = self._received(self._surviving(self._begun))
        if not result.observations:
            raise EpisodeFailed(f"verifiers:{self.source.name} ended before an agent was asked")
        return result.observations

    def step(self, actions: Mapping[str, str]) -> StepResult:
        """The next messages, or the rewards. Raises EpisodeFailed for an episode that fails there."""
        self.replies += actions.values()
        order = {"do": "reply", "text": self.replies[-1]}
        return self._received(self._surviving(lambda: self.process.ask(self.number, order)))

    def close(self) -> None:
        """End the episode."""
        self.process.stop(self.number)

    def _surviving(self, call: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """The message of a call; if the process ends in it, that of a new process after the replies so far."""
        try:
            return call()
        except EpisodeFailed:
            if self.process.is_alive:
                raise
            return self._begun()

    def _begun(self) -> Mapping[str, Any]:
        """The message after the replies so far, in an episode that begins."""
        self.process = self.source.live()
        self.number = self.process.new()
        message = self.process.ask(self.number, self.start)
        for asked, reply in zip(self.asked, self.replies, strict=True):
            if message != {**asked, "episode": self.number}:
                raise EpisodeFailed(f"{self.process.name} asked something else when its process began again")
            message = self.process.ask(self.number, {"do": "reply", "text": reply})
        return message

    def _received(self, message: Mapping[str, Any]) -> StepResult:
        if "over" not in message:
            self.asked.append(message)
            if message["tools"]:
                raise InputError(
                    f"verifiers:{self.source.name} offers tools ({len(message['tools'])}), and replies here are text; "
                    "needed: an environment without tools"
                )
            try:
                return StepResult({message["agent"]: Observation(from_messages(message["messages"]))})
            except ValueError as error:
                raise InputError(f"verifiers:{self.source.name}: {error}; needed: messages of text") from error
        over = message["over"]
        if over["error"]:
            raise EpisodeFailed(f"verifiers:{self.source.name}: {over['error']}")
        single = len(self.source.found["agents"]) == 1
        named = {name.partition("/")[2] if single else name: value for name, value in over["metrics"].items()}
        info = {name: float(value) for name, value in named.items() if _is_number(value)}
        return StepResult(rewards=over["rewards"], terminated=True, info=info)


def load(name: str, settings: Settings, tokenizer: Any = None) -> NamedEnvironment:
    """An installed package with its taskset's settings, and `timeout` (600 s) and, of an endless one, `tasks` (1,000).

    Raises InputError without the environment, and for a package that does not load or offers tools.
    """
    if not NAME.fullmatch(name):
        raise InputError(f"verifiers:{shown(name)} names no package; needed: verifiers:NAME, as verifiers installs it")
    own = dict(settings)
    source = Source(name, own, own.pop("timeout", TIMEOUT))
    found = source.found
    if found["tools"]:
        source.close()
        raise InputError(f"verifiers:{name} offers tools, and replies here are text; needed: one without tools")
    return NamedEnvironment(
        f"verifiers:{name}",
        partial(VerifiersEpisode, source),
        [{"number": number} for number in range(found["tasks"])],
        trained_agents=len(found["agents"]),
        about=f"{found['tasks']:,} tasks, verifiers {found['version']}",
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def names() -> list[str]:
    """Packages of the environment that need verifiers."""
    found = []
    for folder in environment_folder().glob("lib/*/site-packages/*.dist-info"):
        metadata, top = folder / "METADATA", folder / "top_level.txt"
        needs = re.search(r"^Requires-Dist: verifiers\b", metadata.read_text(encoding="utf-8"), re.MULTILINE)
        if needs:
            own = top.read_text(encoding="utf-8").split() if top.is_file() else [folder.name.rpartition("-")[0]]
            found += [name.partition("-")[0] for name in own]
    return sorted(found)


SCHEME = Scheme("verifiers:NAME", "an environment package of verifiers 0.4", load, names, missing)
