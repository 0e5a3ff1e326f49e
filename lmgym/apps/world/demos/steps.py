"""The steps of a demo: commands that are run one after the other, skipped where completed, with a log each."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from lmgym.console import VERBOSE, draw_live_line, erase_live_line, on_terminal, say
from lmgym.distributed.ports import free_port
from lmgym.report.status_line import StepTimes, clock
from lmgym.runs.files import read_json
from lmgym.runs.gpus import visible_gpus
from lmgym.runs.launching import find_experiment

SHOWN_SECONDS = 0.5  # between two times on the terminal
LAST_LINES = 20  # of a failed step's log


@dataclass(frozen=True)
class DemoStep:
    """A command, and a file that exists once it has succeeded."""

    name: str
    words: list[str]
    done: Path


class CompletedSteps:
    """A file of completed steps and results. A step counts only if all steps before it are unchanged too."""

    def __init__(self, path: Path) -> None:
        self.path = path
        record = json.loads(path.read_text()) if path.is_file() else {}
        self.before: dict[str, list[str]] = record.get("steps", {})
        self.now: dict[str, list[str]] = {}

    def has(self, step: DemoStep) -> bool:
        """True if the same command is completed, and so are all before it."""
        same = self.before.get(step.name) == step.words and step.done.is_file()
        if same:
            self.now[step.name] = step.words
        else:
            self.before = {}
        return same

    def add(self, step: DemoStep) -> None:
        """Records a completed step."""
        self.now[step.name] = step.words
        self.note({})

    def note(self, results: dict[str, Any]) -> None:
        """Writes the completed steps and the results of the demo."""
        self.path.write_text(json.dumps({"steps": self.now, "results": results}, indent=1) + "\n")


def deepspeed(experiment: str) -> list[object]:
    """The command that launches an experiment with ZeRO 2, on two ranks, or on one if there is just one GPU."""
    launcher = Path(sys.executable).parent / "deepspeed"
    file = find_experiment(experiment)
    ranks = min(2, visible_gpus() or 2)
    return [launcher, "--num_gpus", ranks, "--log_level", "error", file, "--deepspeed", "zero2"]


def run_steps(
    steps: Sequence[DemoStep],
    about: Mapping[str, tuple[str, float]],
    folder: Path,
    completed: CompletedSteps,
    times: StepTimes,
) -> int:
    """Runs the steps that are not completed. Returns 0, the exit code of the step that failed, or 2 if the folder holds
    a demo of other settings.

    `about` says of each step by name what it does, and about how many seconds it takes.
    """
    for step in steps:
        what, _ = about[step.name]
        if completed.has(step):
            say(f"{times.number} {what}: already done")
            times.skip()
        elif other := _finished_run(step):
            say(f"error: {other} holds a run of other settings, which stays; name another folder: --output", error=True)
            return 2
        elif code := _run(step, what, folder, times):
            return code
        else:
            completed.add(step)
    return 0


def _finished_run(step: DemoStep) -> str:
    """The folder in which a step trains if there is a finished run in it; else empty."""
    folder = step.words[step.words.index("--output") + 1] if "--output" in step.words else ""
    with suppress(OSError, ValueError):
        if folder and read_json(Path(folder) / "run.json").get("outcome") == "finished":
            return folder
    return ""


def _run(step: DemoStep, what: str, folder: Path, times: StepTimes) -> int:
    """The exit code of a step, whose command and output go to a log; 130 if the user stopped it."""
    words = list(step.words)
    if "--num_gpus" in words:  # not part of the recorded command
        words[1:1] = ["--master_port", str(free_port())]
    log = folder / "logs" / f"{step.name.replace(' ', '_')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    times.begin()
    present, together = times.left(0)
    say(f"{times.number} {what}, about {present:.0f} s; {clock(together)} left in all")
    command = f"$ {shlex.join(words)}"
    if VERBOSE:
        say(command)
    with log.open("w", encoding="utf-8") as file:
        say(command, file=file)
        try:
            code = _wait(words, file, times)
        except KeyboardInterrupt:
            say("stopped: the same command continues from here", error=True)
            return 130
    erase_live_line()
    times.end()
    if code:
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]:
            say(line, error=True)
        say(f"error: a step of the demo ended with exit code {code}; its command and all output: {log}", error=True)
    return code


def _wait(words: Sequence[str], file: IO[str], times: StepTimes) -> int:
    """Runs a command to its end, with the time left on the terminal; returns its exit code."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, env=environment) as process:
        while True:
            try:
                return process.wait(SHOWN_SECONDS)
            except subprocess.TimeoutExpired:
                if on_terminal():
                    _, together = times.left(times.elapsed)
                    draw_live_line(f"{times.number} {clock(times.elapsed)}; about {clock(together)} left in all")
            except KeyboardInterrupt:
                process.wait()  # a stage saves a checkpoint first
                raise
