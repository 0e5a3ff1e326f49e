"""A lab's folder: `lab.json` has the versions, the plan's name and, for each completed step, its command and seconds.

A step whose command has changed since is refused: nothing that took time is made anew unasked.
"""

import shlex
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmgym.apps.lab.plan import Plan, read_plan
from lmgym.apps.lab.steps import FINISHED, LabStep
from lmgym.apps.world.world import VERSION as WORLD_VERSION
from lmgym.errors import InputError, one_line, shown, shown_path
from lmgym.runs.files import read_json, write_json

VERSION = "1"
"""of a lab's folders; any change of what their figures mean is a new one"""
RECORD, PLAN_FILE = "lab.json", "plan.py"


@dataclass
class Lab:
    """A lab's folder and its record."""

    folder: Path
    plan: str
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)
    """by name: the command, its seconds and CPU seconds"""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, step: LabStep, **figures: Any) -> None:
        """Records a completed step."""
        with self.lock:
            self.steps[step.name] = {"command": shlex.join(_portable(step)), **figures}
            versions = {"lab": VERSION, "world": WORLD_VERSION}
            write_json(self.folder / RECORD, {**versions, "plan": self.plan, "steps": self.steps})

    def has(self, step: LabStep) -> bool:
        """True if the step is complete. Raises InputError if it is that of another command."""
        if not is_done(self.folder, step):
            return False
        known = self.steps.get(step.name, {}).get("command")
        if known is not None and known != shlex.join(_portable(step)):
            raise InputError(
                f"{shown_path(self.folder / step.done)} is of another plan's step {shown(step.name)}: it was made by "
                f"{one_line(known)}; needed: another --output, or delete {shown_path((self.folder / step.done).parent)}"
            )
        return True


def open_lab(folder: Path, plan: str = "") -> Lab:
    """The record of a folder, or a new one. Raises InputError for one of another version, and if none is asked for."""
    try:
        record = read_json(folder / RECORD)
    except FileNotFoundError:
        if plan:
            return Lab(folder, plan)
        raise InputError(f"{shown_path(folder)} has no {RECORD}; needed: a folder of `lmgym lab run`") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{shown_path(folder / RECORD)} cannot be read: {one_line(str(error))}") from error
    for what, ours in (("lab", VERSION), ("world", WORLD_VERSION)):
        if record.get(what) != ours:
            raise InputError(
                f"{shown_path(folder)} is of {what} version {shown(record.get(what))}, this is {ours}: figures of both "
                "cannot be compared; needed: another --output, or the lmgym that made it"
            )
    return Lab(folder, plan or record["plan"], record["steps"])


def plan_of(folder: Path) -> Plan:
    """The plan that a lab's folder was made by. Raises InputError for another folder."""
    open_lab(folder)
    return read_plan(str(folder / PLAN_FILE))[1]


def is_done(folder: Path, step: LabStep) -> bool:
    """True if what the step makes is there; a run must have come to its end."""
    path = folder / step.done
    if path.name != "run.json":
        return path.is_file()
    with suppress(OSError, ValueError):
        return read_json(path).get("outcome") in FINISHED
    return False


def _portable(step: LabStep) -> list[str]:
    """A step's command without the folder of its program, whatever the interpreter is called."""
    program = "python" if step.words[0] == sys.executable else Path(step.words[0]).name
    return [program, *step.words[1:]]
