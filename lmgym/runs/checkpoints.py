"""Checkpoints that a kill, a full disk or a flipped bit cannot turn into a wrong run.

    checkpoints/step-00000040/              its files, and manifest.json with the size and sha256 of each
    checkpoints/.step-00000040.partial/     one that is being written, or whose writer died; never read

Design decisions:
- A checkpoint is written aside; every rank syncs and hashes its own files; rank 0 writes the manifest, syncs, renames
  the folder and syncs its parent. So a folder of the final name is whole, or the disk has changed it since, which the
  hashes tell.
- A manifest names its run (`owner`): nothing is read, resumed from or removed that another run has written.
- `read` is the one way to a checkpoint: it gives what can be loaded, or why it cannot. Files are looked at as well
  (lmgym/runs/checkpoint_contents.py): DeepSpeed's shards are pickles, and loading a pickle executes it.
- What no file's hash covers (owner, step, facts) has one of its own in the manifest.
- `facts` say of which run a checkpoint is a state: ranks, batches, data, settings. What compares them is at the caller.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from lmgym.distributed.ranks import all_gather_objects, rank
from lmgym.runs.checkpoint_contents import in_a_line, why_unreadable
from lmgym.runs.files import read_json, storage_full

FORMAT = 1
MANIFEST = "manifest.json"
NAME = re.compile(r"step-(\d{8})")
PARTIAL = re.compile(r"\.step-\d{8}\.partial")
# whose files these are: DeepSpeed's shards and our own of each rank; all others are rank 0's
OF_RANK = re.compile(r"(?:zero_pp_rank_|^rank-)(\d+)")
READERS = 4
BLOCK = 1 << 22


@dataclass(frozen=True)
class Checkpoint:
    """One that was found whole: where, after which update, and the facts that were recorded with it."""

    path: Path
    step: int
    facts: Mapping[str, Any]


@final
class Checkpoints:
    """The checkpoints of one run. `owner` is the run's id; at most `limit` are kept (at least one)."""

    def __init__(self, folder: str | Path, owner: str, limit: int = 2) -> None:
        self.folder, self.owner, self.limit = Path(folder), owner, max(1, limit)

    def save(self, step: int, write: Callable[[Path], None], facts: Mapping[str, Any], bytes_needed: int = 0) -> Path:
        """Writes one after `step` updates; `write` is called on every rank with the folder to write to. Collective.

        Raises RunStopped (exit 74), on every rank, where a rank cannot write; what was there before stays whole.
        """
        aside, final_path = self.folder / f".step-{step:08d}.partial", self._path(step)
        failure = _attempt(lambda: self._prepare(aside, final_path, bytes_needed)) if rank() == 0 else ""
        self._refuse(all_gather_objects(failure), final_path, bytes_needed)
        mine: list[dict[str, Any]] = []
        failure = _attempt(lambda: write(aside)) or _attempt(lambda: mine.extend(_seal_own(aside)))
        shared = all_gather_objects((mine, failure))
        self._refuse([said for _, said in shared], final_path, bytes_needed)
        if rank() == 0:
            files = [file for found, _ in shared for file in found]
            failure = _attempt(lambda: self._commit(aside, final_path, step, files, facts))
        self._refuse(all_gather_objects(failure), final_path, bytes_needed)
        if rank() == 0:
            self._remove_older(step)
        return final_path

    def _prepare(self, aside: Path, final_path: Path, bytes_needed: int) -> None:
        aside.parent.mkdir(parents=True, exist_ok=True)
        for left in aside.parent.iterdir():
            if PARTIAL.fullmatch(left.name):  # this run holds the folder's lock: their writers are dead
                shutil.rmtree(left)
        if (whose := _owner(final_path)) not in (None, self.owner):
            raise OSError(f"it is there, of another run ({whose})")
        free = shutil.disk_usage(aside.parent).free
        if bytes_needed > free:
            raise OSError("the disk is full")
        aside.mkdir()

    def _commit(
        self, aside: Path, final_path: Path, step: int, files: Sequence[Mapping], facts: Mapping[str, Any]
    ) -> None:
        there, listed = _names(aside), {file["path"] for file in files}
        if there != listed:
            lost = ", ".join(sorted(there ^ listed)[:3])
            raise OSError(f"{lost} is not seen alike by all ranks: checkpoints need a folder that they share")
        manifest = {"format": FORMAT, "step": step, "owner": self.owner, "facts": facts, "files": files}
        manifest["sha256"] = _seal(json.loads(json.dumps(manifest)))
        with (aside / MANIFEST).open("w", encoding="utf-8") as file:
            file.write(json.dumps(manifest, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        for folder in [*(path for path in aside.rglob("*") if path.is_dir()), aside]:
            _sync(folder)
        if final_path.exists():  # of this very run, which went on from here or from before
            if isinstance(read(final_path, self.owner), Checkpoint):
                shutil.rmtree(aside)  # the same state, and it may be the only one: a kill must not find neither
                return
            shutil.rmtree(final_path)
        os.rename(aside, final_path)
        _sync(final_path.parent)

    def _refuse(self, failures: Sequence[str], path: Path, bytes_needed: int) -> None:
        """Raises on every rank what one of them has met."""
        if not any(failures):
            return
        said = "; ".join(
            f"rank {i}: {failure}" if len(failures) > 1 else failure for i, failure in enumerate(failures) if failure
        )
        needed = f": about {bytes_needed:,} bytes needed" if bytes_needed else ""
        raise storage_full(f"the checkpoint {path} could not be written ({said}){needed}", path, self.last())

    def last(self) -> str:
        """Which checkpoint there is to go back to, for people; its hashes are not compared."""
        for step in sorted(self._steps(), reverse=True):
            if isinstance(read(self._path(step), self.owner, sizes_only=True), Checkpoint):
                return f"the last checkpoint is of step {step} ({self._path(step)})"
        return "there is no checkpoint yet"

    def _remove_older(self, step: int) -> None:
        """Keeps the newest. The one just written was read back for its hashes; it must be there before any goes."""
        mine = [s for s in sorted(self._steps(), reverse=True) if s <= step and _owner(self._path(s)) == self.owner]
        sound = [s for s in mine if isinstance(read(self._path(s), self.owner, sizes_only=True), Checkpoint)]
        if step not in sound:
            return
        for old in [s for s in mine if s < sound[: self.limit][-1]]:
            path = self._path(old)
            aside = self.folder / f".{path.name}.partial"  # a kill in here leaves no half of it behind
            os.rename(path, aside)
            shutil.rmtree(aside, ignore_errors=True)

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def _steps(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        return [int(found[1]) for path in self.folder.iterdir() if (found := NAME.fullmatch(path.name))]

    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest one that is whole, and a line on each newer one that is not. For one rank to ask."""
        skipped: list[str] = []
        for step in sorted(self._steps(), reverse=True):
            found = read(self._path(step), self.owner)
            if isinstance(found, Checkpoint):
                return found, skipped
            skipped.append(f"{self._path(step)} was skipped: {found}")
        return None, skipped


def read(path: Path, owner: str, sizes_only: bool = False) -> Checkpoint | str:
    """A checkpoint whose files are all there, as they were written, and safe to load; or what is wrong with it.

    With `sizes_only` no file is opened but the manifest.
    """
    try:
        manifest = _manifest(path)
        files, whose = {file["path"]: file for file in manifest["files"]}, manifest["owner"]
        known = manifest["format"] == FORMAT
        sound = not known or (
            manifest["sha256"] == _seal(manifest)
            and isinstance(manifest["facts"], dict)
            and all(file["rank"] == _whose(name) and {"size", "sha256"} <= {*file} for name, file in files.items())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"its {MANIFEST} cannot be read ({type(error).__name__})"
    if not sound:
        return f"its {MANIFEST} has changed since it was written"
    if not known:
        return f"its format is {manifest['format']}; this version reads {FORMAT}"
    if whose != owner:
        return "it belongs to another run"
    if strange := sorted(_names(path) - files.keys() - {MANIFEST}):
        return f"{strange[0]} is not in its manifest"
    for name, file in files.items():
        size = (path / name).stat().st_size if (path / name).is_file() else None
        if size != file["size"]:
            return f"{name} is absent" if size is None else f"{name} has {size} bytes; needed: {file['size']}"
    fault = "" if sizes_only else _changed(path, files) or _unreadable(path, files)
    return fault or Checkpoint(path, int(NAME.fullmatch(path.name)[1]), manifest["facts"])  # type: ignore[index]


def _changed(path: Path, files: Mapping[str, Mapping[str, Any]]) -> str:
    with ThreadPoolExecutor(READERS) as pool:  # hashing leaves the interpreter's lock
        digests = pool.map(lambda name: _sha256_or_error(path / name), files)
        for (name, file), digest in zip(files.items(), digests, strict=True):
            if digest != file["sha256"]:
                why = "has changed since it was written (sha256)" if len(digest) == 64 else f"cannot be read ({digest})"
                return f"{name} {why}"
    return ""


def _unreadable(path: Path, names: Iterable[str]) -> str:
    return next((f"{name} {why}" for name in names if (why := why_unreadable(path, name))), "")


def _seal_own(folder: Path) -> list[dict[str, Any]]:
    """Syncs this rank's files to the disk and reads them back for the manifest."""
    sealed = []
    for name in sorted(_names(folder)):
        if _whose(name) != rank():
            continue
        _sync(folder / name)
        size = (folder / name).stat().st_size
        if why := why_unreadable(folder, name):  # better now than when the run is to go on from it
            raise ValueError(f"{name} {why}")
        sealed.append({"path": name, "size": size, "sha256": _sha256(folder / name), "rank": rank()})
    return sealed


def _whose(name: str) -> int:
    """The rank that writes a file."""
    found = OF_RANK.search(Path(name).name)
    return int(found[1]) if found else 0


def _manifest(path: Path) -> dict[str, Any]:
    return read_json(path / MANIFEST)


def ranks_of(path: Path) -> int:
    """How many ranks wrote a checkpoint, by its manifest."""
    return int(_manifest(path)["facts"]["ranks"])


def _seal(manifest: Mapping[str, Any]) -> str:
    """The hash of a manifest, but for its files, which their own hashes cover."""
    covered = {name: value for name, value in manifest.items() if name not in ("files", "sha256")}
    return hashlib.sha256(json.dumps(covered, sort_keys=True).encode()).hexdigest()


def _names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def _owner(path: Path) -> str | None:
    try:
        return str(_manifest(path)["owner"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def newest_owner(folder: Path) -> tuple[Path, str] | None:
    """The newest checkpoint of a folder that has all its files, whoever wrote it, and the id of its run."""
    paths = sorted(path for path in folder.glob("step-*") if NAME.fullmatch(path.name))
    for path in reversed(paths):
        owner = _owner(path)
        if owner is not None and isinstance(read(path, owner, sizes_only=True), Checkpoint):
            return path, owner
    return None


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _sha256_or_error(path: Path) -> str:
    try:
        return _sha256(path)
    except OSError as error:
        return error.strerror or str(error)


def _attempt(work: Callable[[], object]) -> str:
    """What went wrong, in a line; empty where nothing did."""
    try:
        work()
    except Exception as error:  # torch and safetensors say of a full disk each what they like
        return in_a_line(error)
    return ""
