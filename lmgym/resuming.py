"""How a run begins: from the start, or from the newest whole checkpoint of the same run; never from another's.

A relaunch of the same command goes on where the last one was stopped. What is not the same command is refused, with the
difference: settings, data, engine, ranks.
"""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lmgym.checkpoints import Checkpoint, Checkpoints
from lmgym.engine import rank, share_objects, world_size
from lmgym.errors import InputError, RunStopped
from lmgym.locks import FolderLock
from lmgym.run import WRITTEN, versions

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
    chosen = share_objects(found)[0]
    if isinstance(chosen, BaseException):
        if lock:
            lock.release()
        raise chosen
    return Start(chosen.run_id, chosen.checkpoint, lock, chosen.notes)


def _look(folder: Path, facts: Mapping[str, Any], resume: Resume, reshard: bool) -> Start:
    former = _read(folder / "run.json")
    fresh = Start(uuid.uuid4().hex)
    if resume == "never" or not former.get("id") or former.get("outcome") == "finished":
        _refuse_own_results(folder, facts["settings"])
        return fresh
    checkpoint, skipped = Checkpoints(folder / FOLDER, former["id"]).newest()
    notes = tuple(skipped)
    if checkpoint is None:
        _refuse_own_results(folder, facts["settings"])
        return Start(fresh.run_id, notes=notes)
    refuse_difference(folder, checkpoint, facts, reshard)
    changed = [
        f"{name} {was}, now {facts['versions'].get(name)}"
        for name, was in checkpoint.facts["versions"].items()
        if facts["versions"].get(name) != was
    ]
    if changed:
        notes += (f"the checkpoint was written with {', '.join(changed)}: results may differ in the last digits",)
    return Start(former["id"], checkpoint, notes=(*notes, f"going on from {checkpoint.path}"))


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


def _read(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text())
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
