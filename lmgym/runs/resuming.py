"""The start of a run: from scratch, or from the newest valid checkpoint of the same run; never from another run's.

The same command resumes a stopped run. A command that differs in settings, data, engine or ranks is refused with the
difference.
"""

import json
import shlex
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from lmgym.distributed.ranks import all_gather_objects, rank, world_size
from lmgym.errors import InputError, RunStopped, shown_path
from lmgym.runs.checkpoint_files import Checkpoint, loading, newest_owner
from lmgym.runs.checkpoints import Checkpoints
from lmgym.runs.files import read_json
from lmgym.runs.layout import RUN_FILES
from lmgym.runs.locks import FolderLock
from lmgym.runs.paths import absolute_items
from lmgym.runs.record import versions

Resume = Literal["auto", "never"]
FOLDER = "checkpoints"


@dataclass(frozen=True)
class Start:
    """The run's id, which its checkpoints carry, and the checkpoint to resume from; only rank 0 has the lock."""

    run_id: str
    checkpoint: Checkpoint | None = None
    lock: FolderLock | None = None
    notes: tuple[str, ...] = ()
    """for the user"""

    @property
    def resumed_at(self) -> int | None:
        """The number of updates before the checkpoint."""
        return self.checkpoint.step if self.checkpoint else None


def find_start(folder: str | Path, facts: Mapping[str, Any], resume: Resume = "auto", reshard: bool = False) -> Start:
    """Locks the folder and chooses the start. Collective: rank 0 chooses, and all ranks get its choice or its error.

    Raises RunStopped (exit 73) if another run holds the folder; InputError if the newest checkpoint has other facts, or
    if a new run would read files that it renames.
    """
    lock, start, error = None, None, None
    if rank() == 0:
        try:
            lock = FolderLock(folder)
            start = _choose_start(Path(folder), facts, resume, reshard)
        except (InputError, RunStopped) as caught:
            error = caught
    start, error = all_gather_objects((start, error))[0]
    if error:
        if lock:
            lock.release()
        raise error
    return replace(start, lock=lock)


def _choose_start(folder: Path, facts: Mapping[str, Any], resume: Resume, reshard: bool) -> Start:
    former = _read_record(folder / "run.json")
    run_id: Any = former.get("id")
    checkpoint: Checkpoint | None = None
    notes: list[str] = []
    if resume == "auto" and not isinstance(run_id, str):
        _refuse_unknown_owner(folder)
    elif resume == "auto" and former.get("outcome") != "finished":
        checkpoint, notes = Checkpoints(folder / FOLDER, run_id).newest()
    if checkpoint is None:
        _refuse_own_results(folder, facts["settings"])
        return Start(uuid.uuid4().hex, notes=tuple(notes))
    with loading(checkpoint.path):
        _refuse_difference(folder, checkpoint, facts, reshard)
        changed = [
            f"{name} {version}, now {facts['versions'].get(name)}"
            for name, version in checkpoint.facts["versions"].items()
            if facts["versions"].get(name) != version
        ]
    if changed:
        notes.append(f"the checkpoint was written with {', '.join(changed)}: results may differ in the last digits")
    return Start(run_id, checkpoint, notes=(*notes, f"resuming from {checkpoint.path}"))


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
    copies = [p for p in sorted(folder.glob("run.*.json"), reverse=True) if _read_record(p).get("id") == owner]
    content = shlex.quote(json.dumps({"id": owner}))
    restore = f"cp {shlex.quote(str(copies[0]))} {record}" if copies else f"echo {content} > {record}"
    fault = "cannot be read" if (folder / "run.json").exists() else "is missing"
    raise InputError(
        f"{folder} holds checkpoints, the newest {path}, and its run.json, which names their run, {fault}; to resume "
        f"from them: {restore}; to start from scratch: --resume never (they are kept as {FOLDER}.1), or another "
        "--output"
    )


def _read_record(path: Path) -> dict[str, Any]:
    try:
        record = read_json(path)
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _refuse_difference(folder: Path, checkpoint: Checkpoint, facts: Mapping[str, Any], reshard: bool) -> None:
    """Raises InputError, with the difference and the ways out, for a checkpoint of a run with other facts."""
    saved, path = checkpoint.facts, checkpoint.path
    # earlier versions kept paths as they were given
    before, now = {n: absolute_items(n, value) for n, value in saved["settings"].items()}, facts["settings"]
    changed = [
        f"{name} was {before.get(name)!r}, now {now.get(name)!r}"
        for name in {**before, **now}
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
        f"{difference}; or start from scratch with --resume never (the former files are kept), or name another --output"
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
