"""Checkpoints that survive a kill, a full disk or a flipped bit.

    checkpoints/step-00000040/              its files, and manifest.json with the size and sha256 of each
    checkpoints/.step-00000040.partial/     being written, or left by a killed writer; never read

Design decisions:
- A checkpoint is written to a temporary folder; every rank syncs and hashes its own files; rank 0 writes the manifest,
  syncs, renames the folder and syncs its parent. So a folder of the final name is complete, unless the disk has changed
  it since, which the hashes show.
- A manifest names its run (`owner`): other runs' checkpoints are never read, resumed from or removed.
- `read` is the only way to a checkpoint (lmgym/runs/checkpoint_files.py). It checks the content of files too, because
  DeepSpeed's shards are pickles, and loading a pickle executes it.
- The manifest has a hash for its own content (owner, step, facts).
- `facts` describe the run of a checkpoint: ranks, batches, data, settings. The caller compares them.
"""

import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, final

from lmgym.distributed.ranks import all_gather_objects, rank
from lmgym.runs.checkpoint_files import (
    NAME,
    Checkpoint,
    describe_own_files,
    in_a_line,
    owner_of,
    read,
    write_manifest,
)
from lmgym.runs.files import storage_full, sync

PARTIAL = re.compile(r"\.step-\d{8}\.partial")
T = TypeVar("T")


@final
class Checkpoints:
    """The checkpoints of one run. `owner` is the run's id; at most `limit` are kept (at least one)."""

    def __init__(self, folder: str | Path, owner: str, limit: int = 2) -> None:
        self.folder, self.owner, self.limit = Path(folder), owner, max(1, limit)

    def save(self, step: int, write: Callable[[Path], None], facts: Mapping[str, Any], bytes_needed: int = 0) -> Path:
        """Writes a checkpoint after `step` updates; every rank calls `write` with the folder to write to. Collective.

        Raises RunStopped (exit 74) on every rank if one cannot write; the checkpoint before it stays complete.
        """
        partial, path, is_main = self.folder / f".step-{step:08d}.partial", self._path(step), rank() == 0

        def write_own_files() -> list[dict[str, Any]]:
            write(partial)
            return describe_own_files(partial)

        def on_all_ranks(work: Callable[[], T]) -> list[T]:
            return self._on_all_ranks(work, path, bytes_needed)

        on_all_ranks(lambda: self._prepare(partial, path, bytes_needed) if is_main else None)
        files = [file for of_rank in on_all_ranks(write_own_files) for file in of_rank]
        on_all_ranks(lambda: self._commit(partial, path, step, files, facts) if is_main else None)
        if is_main:
            self._remove_older(step)
        return path

    def _on_all_ranks(self, work: Callable[[], T], path: Path, bytes_needed: int) -> list[T]:
        """Every rank's result of `work`. Raises RunStopped on all ranks if it failed on one. Collective."""
        result, failure = None, ""
        try:
            result = work()
        except Exception as error:  # torch and safetensors each have their own errors for a full disk
            failure = in_a_line(error)
        outcomes = all_gather_objects((result, failure))
        failures = {number: failure for number, (_, failure) in enumerate(outcomes) if failure}
        if failures:
            causes = "; ".join(f"rank {n}: {text}" if len(outcomes) > 1 else text for n, text in failures.items())
            needed = f": about {bytes_needed:,} bytes needed" if bytes_needed else ""
            raise storage_full(f"the checkpoint {path} could not be written ({causes}){needed}", path, self.last())
        return [result for result, _ in outcomes]

    def _prepare(self, partial: Path, path: Path, bytes_needed: int) -> None:
        self.folder.mkdir(exist_ok=True)  # the run's own folder is there, or was deleted
        for leftover in self.folder.iterdir():
            if PARTIAL.fullmatch(leftover.name):  # this run holds the folder's lock, so their writers are dead
                shutil.rmtree(leftover)
        if (owner := owner_of(path)) not in (None, self.owner):
            raise OSError(f"another run ({owner}) has written it")
        if bytes_needed > shutil.disk_usage(self.folder).free:
            raise OSError("the disk is full")
        partial.mkdir()

    def _commit(self, partial: Path, path: Path, step: int, files: Sequence[Mapping], facts: Mapping[str, Any]) -> None:
        write_manifest(partial, step, self.owner, facts, files)
        if path.exists():  # written by this run before it resumed from an earlier checkpoint
            if isinstance(read(path, self.owner), Checkpoint):
                shutil.rmtree(partial)  # the same state; removing `path` first could leave neither after a kill
                return
            shutil.rmtree(path)
        os.rename(partial, path)
        sync(self.folder)

    def last(self) -> str:
        """The newest complete checkpoint, for messages; its hashes are not verified."""
        for step in self._steps():
            if self._is_complete(step):
                return f"the last checkpoint is of step {step} ({self._path(step)})"
        return "there is no checkpoint yet"

    def _remove_older(self, step: int) -> None:
        """Removes all but the newest checkpoints, and none unless the new one is complete."""
        steps = [s for s in self._steps() if s <= step and owner_of(self._path(s)) == self.owner]
        complete = [s for s in steps if self._is_complete(s)]
        if step not in complete:
            return
        for old in [s for s in steps if s < complete[: self.limit][-1]]:
            path = self._path(old)
            partial = self.folder / f".{path.name}.partial"  # a kill while removing leaves no half checkpoint
            os.rename(path, partial)
            shutil.rmtree(partial, ignore_errors=True)

    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest valid checkpoint, and a line about each newer one that is not. For one rank only."""
        skipped: list[str] = []
        for step in self._steps():
            checkpoint = read(self._path(step), self.owner)
            if isinstance(checkpoint, Checkpoint):
                return checkpoint, skipped
            skipped.append(f"{self._path(step)} was skipped: {checkpoint}")
        return None, skipped

    def _is_complete(self, step: int) -> bool:
        return isinstance(read(self._path(step), self.owner, sizes_only=True), Checkpoint)

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def _steps(self) -> list[int]:
        """Steps of all checkpoints, the newest first."""
        if not self.folder.is_dir():
            return []
        return sorted((int(match[1]) for p in self.folder.iterdir() if (match := NAME.fullmatch(p.name))), reverse=True)
