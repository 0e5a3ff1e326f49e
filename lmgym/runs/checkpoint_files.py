"""The files of a checkpoint: their manifest, and their verification before anything is loaded, which executes nothing.

A manifest that matches its files proves that nothing has changed since it was written, not who wrote it: somebody who
writes both can include a pickle that runs a program when it is loaded. So pickles are read with `weights_only`, and the
imports of DeepSpeed's shards, which DeepSpeed loads without that safeguard, are compared with those of DeepSpeed's own
shards.
"""

import contextlib
import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from lmgym.distributed.ranks import rank
from lmgym.errors import InputError, RunStopped, regular
from lmgym.runs.files import read_json, sync

FORMAT = 1
MANIFEST = "manifest.json"
NAME = re.compile(r"step-(\d{8})")
# files of one rank: DeepSpeed's shards and our rank state; all others are rank 0's
FILE_OF_RANK = re.compile(r"(?:zero_pp_rank_|^rank-)(\d+)")
READERS = 4
# classes that DeepSpeed's ZeRO engines (0.19.8) pickle besides tensors; constructing them has no side effects
SHARD_CLASSES = frozenset(
    {
        "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
        "deepspeed.runtime.fp16.loss_scaler.LossScaler",
        "deepspeed.runtime.zero.config.ZeroStageEnum",
        "deepspeed.utils.tensor_fragment.fragment_address",
        "deepspeed.utils.tensor_fragment.tensor_fragment",
    }
)


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint: its folder, the number of updates before it, and the facts recorded with it."""

    path: Path
    step: int
    facts: Mapping[str, Any]


def read(path: Path, owner: str, sizes_only: bool = False) -> Checkpoint | str:
    """A checkpoint with all files unchanged and safe to load, or a description of what is wrong with it.

    With `sizes_only` the manifest is the only file that is opened.
    """
    try:
        manifest = read_json(path / MANIFEST)
        fault = _manifest_fault(manifest, owner)
        files = {file["path"]: file for file in manifest["files"]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"its {MANIFEST} cannot be read ({type(error).__name__})"
    fault = fault or _size_fault(path, files)
    if not (fault or sizes_only):
        fault = _hash_fault(path, files) or next(filter(None, (_content_fault(path, name) for name in files)), "")
    return fault or Checkpoint(path, int(path.name.removeprefix("step-")), manifest["facts"])


def ranks_of(path: Path) -> int:
    """The number of ranks that wrote a checkpoint."""
    return int(read_json(path / MANIFEST)["facts"]["ranks"])


def owner_of(path: Path) -> str | None:
    """The id of the run that wrote a checkpoint; None if its manifest does not say."""
    try:
        return str(read_json(path / MANIFEST)["owner"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def newest_owner(folder: Path) -> tuple[Path, str] | None:
    """The newest complete checkpoint of a folder, by sizes, and the id of its run, whichever that is."""
    for path in sorted((path for path in folder.glob("step-*") if NAME.fullmatch(path.name)), reverse=True):
        owner = owner_of(path)
        if owner is not None and isinstance(read(path, owner, sizes_only=True), Checkpoint):
            return path, owner
    return None


def describe_own_files(folder: Path) -> list[dict[str, Any]]:
    """This rank's files for the manifest. Syncs them and reads them back; raises ValueError if one is not loadable."""
    files = []
    for name in sorted(_file_names(folder)):
        if _rank_of_file(name) == rank():
            sync(folder / name)
            if fault := _content_fault(folder, name):  # found now rather than at resume
                raise ValueError(fault)
            size, sha256 = (folder / name).stat().st_size, file_hash(folder / name)
            files.append({"path": name, "size": size, "sha256": sha256, "rank": rank()})
    return files


def write_manifest(
    folder: Path, step: int, owner: str, facts: Mapping[str, Any], files: Sequence[Mapping[str, Any]]
) -> None:
    """Writes and syncs the manifest of all ranks' files. Raises OSError if the folder holds others."""
    if differing := _file_names(folder) ^ {file["path"] for file in files}:
        names = ", ".join(sorted(differing)[:3])
        raise OSError(f"not all ranks see {names}: checkpoints need a folder that all ranks share")
    manifest = {"format": FORMAT, "step": step, "owner": owner, "facts": facts, "files": files}
    manifest["sha256"] = manifest_hash(json.loads(json.dumps(manifest)))
    with (folder / MANIFEST).open("w", encoding="utf-8") as file:
        file.write(json.dumps(manifest, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    for path in [*(path for path in folder.rglob("*") if path.is_dir()), folder]:
        sync(path)


def manifest_hash(manifest: Mapping[str, Any]) -> str:
    """The hash of a manifest without its files, which have hashes of their own."""
    covered = {name: value for name, value in manifest.items() if name not in ("files", "sha256")}
    return hashlib.sha256(json.dumps(covered, sort_keys=True).encode()).hexdigest()


def file_hash(path: Path) -> str:
    """The sha256 of a file's content."""
    with regular(path).open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _file_names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def _rank_of_file(name: str) -> int:
    match = FILE_OF_RANK.search(Path(name).name)
    return int(match[1]) if match else 0


def _manifest_fault(manifest: Mapping[str, Any], owner: str) -> str:
    if manifest["format"] != FORMAT:
        return f"its format is {manifest['format']}; this version reads {FORMAT}"
    unchanged = manifest["sha256"] == manifest_hash(manifest) and isinstance(manifest["facts"], dict)
    complete = all(
        file["rank"] == _rank_of_file(file["path"]) and {"size", "sha256"} <= {*file} for file in manifest["files"]
    )
    if not (unchanged and complete):
        return f"its {MANIFEST} has changed since it was written"
    return "" if manifest["owner"] == owner else "it belongs to another run"


def _size_fault(path: Path, files: Mapping[str, Mapping[str, Any]]) -> str:
    if unlisted := sorted(_file_names(path) - files.keys() - {MANIFEST}):
        return f"{unlisted[0]} is not in its manifest"
    for name, file in files.items():
        if not (path / name).is_file():
            return f"{name} is missing"
        size = (path / name).stat().st_size
        if size != file["size"]:
            return f"{name} has {size} bytes; needed: {file['size']}"
    return ""


def _hash_fault(path: Path, files: Mapping[str, Mapping[str, Any]]) -> str:
    def fault(name: str) -> str:
        try:
            changed = file_hash(path / name) != files[name]["sha256"]
        except OSError as error:
            return f"{name} cannot be read ({error.strerror or error})"
        return f"{name} has changed since it was written (sha256)" if changed else ""

    with ThreadPoolExecutor(READERS) as pool:  # hashing releases the interpreter's lock
        return next(filter(None, pool.map(fault, files)), "")


def _content_fault(folder: Path, name: str) -> str:
    """The reason why a file cannot be loaded, with its name; empty if it can. Reads no tensor data."""
    try:
        fault = _load_fault(folder / name, is_shard="/" in name)
    except Exception as error:  # libraries raise various errors for files that they cannot read
        fault = f"cannot be read ({in_a_line(error)})"
    return fault and f"{name} {fault}"


def _load_fault(path: Path, is_shard: bool) -> str:
    if path.name == "latest":  # DeepSpeed's file that names the folder of its shards
        tag = regular(path).read_text(encoding="utf-8").strip()
        inside = tag == Path(tag).name and (path.parent / tag).is_dir()
        return "" if inside else f"names {tag[:80]!r}, which is not a folder of this checkpoint"
    if path.suffix == ".json":
        return "" if isinstance(read_json(path), dict) else "does not hold a JSON object"
    if path.suffix == ".safetensors":
        with safe_open(path, framework="pt") as file:
            file.keys()
    elif path.suffix == ".pt" and is_shard:
        imports = torch.serialization.get_unsafe_globals_in_checkpoint(str(path))
        unknown = sorted(set(imports) - SHARD_CLASSES)
        return f"would execute {unknown[0]} when loaded" if unknown else ""
    elif path.suffix == ".pt":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="meta", mmap=True, weights_only=True)
        return "" if isinstance(content, dict) else "does not hold a dictionary"
    return ""


@contextlib.contextmanager
def loading(path: Path) -> Iterator[None]:
    """Context manager that turns a library's error about a checkpoint into an InputError of one line."""
    try:
        yield
    except (InputError, RunStopped, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise InputError(
            f"{path} cannot be loaded ({in_a_line(error)}); remove it to resume from the one before it, or start from "
            "scratch with --resume never"
        ) from error


def in_a_line(error: Exception) -> str:
    """An error's type and message in one line of at most 300 characters."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def write_rank_state(folder: Path, content: Any) -> None:
    """Writes this rank's state. Call it on every rank."""
    torch.save(content, _rank_file(folder, rank()))


def read_rank_state(folder: Path, number: int) -> Any:
    """The state that a rank wrote, read with `weights_only`. Raises InputError if the file is missing."""
    path = _rank_file(folder, number)
    if not path.is_file():
        raise InputError(
            f"{path} is missing: without this rank's random state the run would not resume exactly; needed: the file, "
            "or an older checkpoint (remove this one), or --resume never"
        )
    with loading(folder):
        return torch.load(path, map_location="cpu", weights_only=True)


def _rank_file(folder: Path, number: int) -> Path:
    return folder / f"rank-{number:05d}.pt"
