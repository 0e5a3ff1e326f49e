"""How a run begins: from the start, or from the newest whole checkpoint of the same run; never from another's.

A relaunch of the same command goes on where the last one was stopped. What is not the same command is refused, with the
difference: settings, data, engine, ranks.
"""

import json
import shlex
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lmgym.distributed.ranks import all_gather_objects, rank, world_size
from lmgym.errors import InputError, RunStopped
from lmgym.runs.checkpoint_files import Checkpoint, loading, newest_owner
from lmgym.runs.checkpoints import Checkpoints
from lmgym.runs.files import read_json
from lmgym.runs.layout import WRITTEN
from lmgym.runs.locks import FolderLock
from lmgym.runs.record import versions

Resume = Literal["auto", "never"]
FOLDER = "checkpoints"


@dataclass(frozen=True)
class Start:
    """The run's id, which its checkpoints carry, and the checkpoint to go on from; the lock is rank 0's."""

    run_id: str
    checkpoint: Checkpoint | None = None
    lock: FolderLock | None = None
    notes: tuple[str, ...] = ()
    """what people should know of the choice"""

    @property
    def resumed_at(self) -> int | None:
        """Updates that are already made."""
        return self.checkpoint.step if self.checkpoint else None


def find_start(folder: str | Path, facts: Mapping[str, Any], resume: Resume = "auto", reshard: bool = False) -> Start:
    """Locks the folder and chooses how to begin. Collective: rank 0 looks, and all begin alike or raise alike.

    Raises RunStopped (exit 73) where another run has the folder, InputError where the newest checkpoint is of a run
    with other facts, or where a run that begins anew is to read what it sets aside.
    """
    found: Start | BaseException
    lock = None
    try:
        lock = FolderLock(folder) if rank() == 0 else None
        found = _look(Path(folder), facts, resume, reshard) if rank() == 0 else Start("")
    except (InputError, RunStopped) as error:
        found = error
    chosen = all_gather_objects(found)[0]
    if isinstance(chosen, BaseException):
        if lock:
            lock.release()
        raise chosen
    return Start(chosen.run_id, chosen.checkpoint, lock, chosen.notes)


def _look(folder: Path, facts: Mapping[str, Any], resume: Resume, reshard: bool) -> Start:
    former = _read(folder / "run.json")
    run_id, fresh = former.get("id"), Start(uuid.uuid4().hex)
    if resume == "auto" and not isinstance(run_id, str):
        _refuse_unclaimed(folder)
    if resume == "never" or not isinstance(run_id, str) or former.get("outcome") == "finished":
        _refuse_own_results(folder, facts["settings"])
        return fresh
    checkpoint, skipped = Checkpoints(folder / FOLDER, run_id).newest()
    notes = tuple(skipped)
    if checkpoint is None:
        _refuse_own_results(folder, facts["settings"])
        return Start(fresh.run_id, notes=notes)
    with loading(checkpoint.path):
        refuse_difference(folder, checkpoint, facts, reshard)
        notes += _other_versions(checkpoint, facts)
    return Start(run_id, checkpoint, notes=(*notes, f"going on from {checkpoint.path}"))


def _other_versions(checkpoint: Checkpoint, facts: Mapping[str, Any]) -> tuple[str, ...]:
    changed = [
        f"{name} {was}, now {facts['versions'].get(name)}"
        for name, was in checkpoint.facts["versions"].items()
        if facts["versions"].get(name) != was
    ]
    if not changed:
        return ()
    return (f"the checkpoint was written with {', '.join(changed)}: results may differ in the last digits",)


def _refuse_own_results(folder: Path, settings: Mapping[str, Any]) -> None:
    """Raises InputError where a setting names a model or a file that beginning anew would set aside."""
    results = {(folder / name).resolve() for name in WRITTEN}
    for setting, value in settings.items():
        # a path alone, or name=PATH behind commas
        for word in str(value).split(",") if isinstance(value, str) else ():
            path = Path(word.rpartition("=")[2].strip()).expanduser().resolve()
            if results & {path, *path.parents} and path.exists():
                raise InputError(
                    f"--{setting} {value} is a result in {folder}, the folder of this run, which begins anew and sets "
                    "former results aside; needed: another --output"
                )


def _refuse_unclaimed(folder: Path) -> None:
    """Raises InputError where checkpoints are there and no run.json says whose they are.

    To begin anew beside them would lose what they hold without a word; to go on from them would load what may come from
    elsewhere.
    """
    newest = newest_owner(folder / FOLDER)
    if newest is None:
        return
    path, owner = newest
    record = shlex.quote(str(folder / "run.json"))
    kept = [str(one) for one in sorted(folder.glob("run.*.json"), reverse=True) if _read(one).get("id") == owner]
    restore = f"cp {shlex.quote(kept[0])} {record}" if kept else f"echo '{json.dumps({'id': owner})}' > {record}"
    found = "cannot be read" if (folder / "run.json").exists() else "is absent"
    raise InputError(
        f"{folder} holds checkpoints, the newest {path}, and its run.json, which says whose they are, {found}; to go "
        f"on from them: {restore}; to begin anew: --resume never (they are kept as {FOLDER}.1), or another --output"
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        record = read_json(path)
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def refuse_difference(folder: Path, checkpoint: Checkpoint, facts: Mapping[str, Any], reshard: bool) -> None:
    """Raises InputError, with what differs and the ways out, where a checkpoint is of another run than `facts`."""
    was = checkpoint.facts
    anew = "begin anew with --resume never (the former files are kept), or name another --output"
    if was["engine"] != facts["engine"]:
        raise InputError(
            f"{checkpoint.path} was written under {was['engine']}, this run is {facts['engine']}; needed: the same "
            f"launch; or {anew}"
        )
    if was["ranks"] != facts["ranks"] and not reshard:
        raise InputError(
            f"{checkpoint.path} was written by {was['ranks']} rank(s), this run has {facts['ranks']}; needed: "
            f"{was['ranks']} (--num_gpus {was['ranks']} or --nproc_per_node {was['ranks']}), or --reshard to convert "
            f"the checkpoint, which keeps weights and optimizer but not the random numbers; or {anew}"
        )
    if was["data"] != facts["data"]:
        raise InputError(
            f"the data differs from that of {checkpoint.path} (fingerprint {was['data'][:12]}, now "
            f"{facts['data'][:12]}); needed: the same rows and splits; or {anew}"
        )
    free = {"micro_batch"} if reshard else set()
    names = [n for n in {**was["settings"], **facts["settings"]} if n not in free]
    changed = [
        f"{n} was {was['settings'].get(n)!r}, now {facts['settings'].get(n)!r}"
        for n in names
        if was["settings"].get(n) != facts["settings"].get(n)
    ]
    if changed:
        raise InputError(
            f"{folder} holds a run that is not finished, with other settings: {'; '.join(changed)}; to go on with it "
            f"give the same ones; or {anew}"
        )


def describe(settings: Mapping[str, Any], engine: str, accumulation: int, data: str) -> dict[str, Any]:
    """The facts of a run that its checkpoints are compared by, as JSON holds them."""
    facts = {
        "engine": engine,
        "ranks": world_size(),
        "accumulation": accumulation,
        "data": data,
        "settings": settings,
        "versions": versions(),
    }
    return json.loads(json.dumps(facts))
