"""The start of a run: its folder, and the newest valid checkpoint of the same run to resume from; never another run's.

The same command resumes a stopped run in its folder. A finished run stays as it is: the next one is in OUTPUT/2,
OUTPUT/3, ... (`_choose_folder`). A stopped run of other data, another engine or other ranks is refused with the
difference.
"""

import json
import re
import shlex
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from lmgym.distributed.ranks import all_gather_objects, rank, world_size
from lmgym.errors import InputError, RunStopped, one_line, shown, shown_path
from lmgym.masking import MASK
from lmgym.runs.checkpoint_files import Checkpoint, loading, newest_owner
from lmgym.runs.checkpoints import Checkpoints
from lmgym.runs.files import read_object
from lmgym.runs.layout import RUN_FILES
from lmgym.runs.locks import FolderLock, cannot_write, is_free
from lmgym.runs.paths import absolute_items
from lmgym.runs.record import REDACTED, redact, versions

Resume = Literal["auto", "never"]
FOLDER = "checkpoints"
NUMBER = re.compile("[1-9][0-9]{0,8}")
"""name of the folder of a later run, in that of the first"""


@dataclass(frozen=True)
class Start:
    """The run's id, which its checkpoints carry, and the checkpoint to resume from; only rank 0 has the lock."""

    run_id: str
    checkpoint: Checkpoint | None = None
    lock: FolderLock | None = None
    notes: tuple[str, ...] = ()
    """for the user"""
    folder: Path = Path()
    """that of the run"""

    @property
    def resumed_at(self) -> int | None:
        """The number of updates before the checkpoint."""
        return self.checkpoint.step if self.checkpoint else None


def find_start(
    output: str | Path,
    facts: Mapping[str, Any],
    resume: Resume = "auto",
    reshard: bool = False,
    is_default: bool = False,
) -> Start:
    """Locks the run's folder and chooses the start. Collective: rank 0 chooses, and all ranks get its choice or error.

    `is_default`: the user did not name `output`, the folder of the experiment. Raises RunStopped (exit 73) if another
    process holds the folder; InputError if the newest checkpoint has other facts, if a new run would read files that it
    renames, or if an output that the user named holds a finished run.
    """
    lock, start, error = None, None, None
    if rank() == 0:
        try:
            folder, notes = _choose_folder(Path(output), facts, resume, reshard, is_default)
            lock = FolderLock(folder)
            start = _choose_start(folder, facts, resume, reshard)
            start = replace(start, notes=(*notes, *start.notes))
        except (InputError, RunStopped) as caught:
            error = caught
        except OSError as caught:
            error = cannot_write(output, caught)
    start, error = all_gather_objects((start, error))[0]
    if error:
        if lock:
            lock.release()
        raise error
    return replace(start, lock=lock)


def _choose_folder(
    output: Path, facts: Mapping[str, Any], resume: Resume, reshard: bool, is_default: bool
) -> tuple[Path, list[str]]:
    """The folder of a run, OUTPUT or OUTPUT/N, and notes on it.

    It is that of the last run of this command, if that is unfinished. Otherwise it is a new one: with a number if the
    last run is finished, can be resumed, or still runs. An output that the user named is never replaced by a number
    unasked, because other commands may read the results in it: InputError if it holds a finished run.
    """
    runs = [folder for folder in run_folders(output) if any((folder / name).exists() for name in RUN_FILES)]
    records = {folder: read_object(folder / "run.json") for folder in runs}
    changes = {folder: _changed_settings(record, facts, reshard) for folder, record in records.items()}
    if not runs:
        return output, []
    newest = runs[-1]
    if resume == "auto":
        own = next((folder for folder in reversed(runs) if not changes[folder]), None)
        if own is not None and not _is_finished(records[own]):
            return own, []
        if not is_default and output in runs:
            if _is_finished(records[output]):
                raise InputError(
                    f"{shown_path(output)} holds a finished run, which is never replaced; needed: another --output, no "
                    "--output (each run then has a folder of its own), or --resume never for a new run in a numbered "
                    "folder in it"
                )
            return output, []
        if not _is_occupied(newest, records[newest]):
            return newest, []
    folder = output / str(1 + max(int(path.name) if path != output else 1 for path in run_folders(output)))
    note = f"{shown_path(output)} holds {len(runs)} run{'s' * (len(runs) != 1)} already (`lmgym runs` lists them)"
    if resume == "auto" and not _is_finished(records[newest]):
        note += f", the last one unfinished and with other settings ({one_line('; '.join(changes[newest]))})"
    return folder, [f"{note}: this one has a folder of its own"]


def run_folders(output: Path) -> list[Path]:
    """A run's folder and those of later runs in it, in the order of their numbers; they may hold no run."""
    numbers: list[int] = []
    with suppress(OSError):
        numbers = [int(path.name) for path in output.iterdir() if NUMBER.fullmatch(path.name) and path.is_dir()]
    return [output, *(output / str(number) for number in sorted(numbers) if number > 1)]


def _is_finished(record: Mapping[str, Any]) -> bool:
    return record.get("outcome") == "finished"


def _is_occupied(folder: Path, record: Mapping[str, Any]) -> bool:
    """True if a run of another command must leave the folder as it is."""
    return _is_finished(record) or newest_owner(folder / FOLDER) is not None or not is_free(folder)


def _changed_settings(record: Mapping[str, Any], facts: Mapping[str, Any], reshard: bool) -> list[str]:
    """The settings of a recorded run that are not those of this command: without them, it is a run of this command.

    The launch may differ (`_refuse_difference` says so), and settings that only one of two versions of lmgym has.
    """
    before, now = record.get("config"), redact(facts["settings"])
    if not isinstance(before, Mapping):
        return []
    ranks = facts["ranks"]
    # of few rows, the batch follows from the ranks
    launch = (
        {"deepspeed", "micro_batch", "global_batch"}
        if reshard or record.get("world_size", ranks) != ranks
        else {"deepspeed"}
    )
    names = (now.keys() & before.keys()) - launch
    was = {name: absolute_items(name, before[name]) for name in now if name in names}
    return [
        f"{name} was {shown(value)}, now {shown(now[name])}"
        for name, value in was.items()
        if value != now[name] and not any(mark in str(value) for mark in (MASK, REDACTED))
    ]


def _choose_start(folder: Path, facts: Mapping[str, Any], resume: Resume, reshard: bool) -> Start:
    former = read_object(folder / "run.json")
    run_id: Any = former.get("id")
    checkpoint: Checkpoint | None = None
    notes: list[str] = []
    if resume == "auto" and not isinstance(run_id, str):
        _refuse_unknown_owner(folder)
    elif resume == "auto" and not _is_finished(former):
        checkpoint, notes = Checkpoints(folder / FOLDER, run_id).newest()
    if checkpoint is None:
        _refuse_own_results(folder, facts["settings"])
        return Start(uuid.uuid4().hex, notes=tuple(notes), folder=folder)
    with loading(checkpoint.path):
        _refuse_difference(folder, checkpoint, facts, reshard)
        changed = [
            f"{name} {version}, now {facts['versions'].get(name)}"
            for name, version in checkpoint.facts["versions"].items()
            if facts["versions"].get(name) != version
        ]
    if changed:
        notes.append(f"the checkpoint was written with {', '.join(changed)}: results may differ in the last digits")
    if gone := {n: value for n, value in checkpoint.facts["settings"].items() if n not in facts["settings"]}:
        of_old = ", ".join(f"{name}={shown(value)}" for name, value in gone.items())
        notes.append(f"the checkpoint was written with settings that this version does not have: {of_old}")
    return Start(run_id, checkpoint, notes=(*notes, f"resuming from {checkpoint.path}"), folder=folder)


def _refuse_own_results(folder: Path, settings: Mapping[str, Any]) -> None:
    """Raises InputError if a setting names a model or file of this folder: a new run renames them."""
    results = {(folder / name).resolve() for name in RUN_FILES}
    for setting, value in settings.items():
        # PATH, or a list such as name=PATH,name=PATH
        for item in value.split(",") if isinstance(value, str) else ():
            path = Path(item.rpartition("=")[2].strip()).expanduser().resolve()
            if results & {path, *path.parents} and path.exists():
                raise InputError(
                    f"--{setting} {value} is a result in {folder}, the folder of this run, which starts from scratch "
                    "and renames former results; needed: another --output"
                )


def _refuse_unknown_owner(folder: Path) -> None:
    """Raises InputError for checkpoints without a run.json that names their run.

    A new run beside them would silently give them up, and resuming could load another run's.
    """
    newest = newest_owner(folder / FOLDER)
    if newest is None:
        return
    path, owner = newest
    record = shlex.quote(str(folder / "run.json"))
    copies = [p for p in sorted(folder.glob("run.*.json"), reverse=True) if read_object(p).get("id") == owner]
    content = shlex.quote(json.dumps({"id": owner}))
    restore = f"cp {shlex.quote(str(copies[0]))} {record}" if copies else f"echo {content} > {record}"
    fault = "cannot be read" if (folder / "run.json").exists() else "is missing"
    raise InputError(
        f"{folder} holds checkpoints, the newest {path}, and its run.json, which names their run, {fault}; to resume "
        f"from them: {restore}; to start from scratch: --resume never (in a folder of its own), or another --output"
    )


def _refuse_difference(folder: Path, checkpoint: Checkpoint, facts: Mapping[str, Any], reshard: bool) -> None:
    """Raises InputError, with the difference and the ways out, for a checkpoint of a run with other facts.

    Settings that only the checkpoint's version has are none of this run's.
    """
    saved, path = checkpoint.facts, checkpoint.path
    # earlier versions kept paths as they were given
    before, now = {n: absolute_items(n, value) for n, value in saved["settings"].items()}, facts["settings"]
    changed = [
        f"{name} was {before.get(name)!r}, now {now.get(name)!r}"
        for name in now
        if before.get(name) != now.get(name) and not (reshard and name == "micro_batch")
    ]
    if saved["engine"] != facts["engine"]:
        difference = (
            f"{path} was written under {saved['engine']}, this run is {facts['engine']}; needed: the same launch"
        )
    elif saved["ranks"] != facts["ranks"] and not reshard:
        difference = (
            f"{path} was written by {saved['ranks']} rank(s), this run has {facts['ranks']}; needed: {saved['ranks']} "
            f"(--num_gpus {saved['ranks']} or --nproc_per_node {saved['ranks']}), or --reshard to convert the "
            "checkpoint, which keeps weights and optimizer but not the random numbers"
        )
    elif saved["data"] != facts["data"]:
        difference = (
            f"the data differs from that of {path} (fingerprint {saved['data'][:12]}, now {facts['data'][:12]}); "
            "needed: the same rows and splits"
        )
    elif changed:
        difference = (
            f"{folder} holds an unfinished run with other settings: {'; '.join(changed)}; to resume it use the same "
            "settings"
        )
    elif saved.get("base") not in (None, base := facts.get("base")):
        difference = (
            f"{shown_path(now['model'])} has changed since {path.name} (fingerprint {saved['base'][:8]}, now "
            f"{str(base)[:8]}), which holds its adapter alone; needed: the model as it was"
        )
    else:
        return
    raise InputError(
        f"{difference}; or begin a new run in a folder of its own with --resume never, or name another --output"
    )


def describe(
    settings: Mapping[str, Any], engine: str, accumulation: int, data: str, base: str | None = None
) -> dict[str, Any]:
    """The facts of a run that must match its checkpoints', as JSON holds them.

    `base` is the fingerprint of the model whose frozen weights the checkpoints lack; None if they hold all weights.
    """
    facts = {
        "engine": engine,
        "ranks": world_size(),
        "accumulation": accumulation,
        "data": data,
        "base": base,
        "settings": settings,
        "versions": versions(),
    }
    return json.loads(json.dumps(facts))
