"""The files of a checkpoint, looked at before anything is loaded from them; nothing in them is executed.

A manifest that agrees with its files says that nothing has changed since it was written, not by whom: somebody who
writes both can put a pickle there that runs a program as it is loaded. So each pickle is read as `torch.load` reads it
safely, and of DeepSpeed's shards, which DeepSpeed loads without that care, the names that they import are compared with
those that DeepSpeed itself writes.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import safe_open

from lmgym.distributed.ranks import rank
from lmgym.errors import InputError, RunStopped
from lmgym.runs.files import read_json

# what DeepSpeed's ZeRO engines (0.19.8) pickle besides tensors; none of them does anything when it is made
SHARD_CLASSES = frozenset(
    {
        "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
        "deepspeed.runtime.fp16.loss_scaler.LossScaler",
        "deepspeed.runtime.zero.config.ZeroStageEnum",
        "deepspeed.utils.tensor_fragment.fragment_address",
        "deepspeed.utils.tensor_fragment.tensor_fragment",
    }
)
LATEST = "latest"  # DeepSpeed's note of the folder that holds its shards


@contextlib.contextmanager
def loading(path: Path) -> Iterator[None]:
    """Within, what a library says of a checkpoint that it cannot load becomes an InputError of one line."""
    try:
        yield
    except (InputError, RunStopped, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise InputError(
            f"{path} cannot be loaded ({in_a_line(error)}); remove it to go on from the one before it, or begin anew "
            "with --resume never"
        ) from error


def in_a_line(error: Exception) -> str:
    """The kind of an error and what it says, in one line that is not long."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def why_unreadable(folder: Path, name: str) -> str:
    """Why a file of a checkpoint cannot be loaded; empty where it can. Tensors are not read, only what names them."""
    path = folder / name
    look = _look_at_shard if "/" in name and path.suffix == ".pt" else LOOKS.get(path.suffix)
    try:
        if path.name == LATEST:
            return _look_at_tag(path)
        return look(path) if look else ""
    except Exception as error:  # each library says of a file that it cannot read what it likes
        return f"cannot be read ({in_a_line(error)})"


def _look_at_json(path: Path) -> str:
    return "" if isinstance(read_json(path), dict) else "holds no JSON object"


def _look_at_pickle(path: Path) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = torch.load(path, map_location="meta", mmap=True, weights_only=True)
    return "" if isinstance(found, dict) else "holds no dictionary"


def _look_at_shard(path: Path) -> str:
    imported = torch.serialization.get_unsafe_globals_in_checkpoint(str(path))
    strange = sorted(set(imported) - SHARD_CLASSES)
    return f"would execute {strange[0]} as it is loaded" if strange else ""


def _look_at_weights(path: Path) -> str:
    with safe_open(path, framework="pt") as file:
        file.keys()
    return ""


def _look_at_tag(path: Path) -> str:
    tag = path.read_text(encoding="utf-8").strip()
    inside = tag == Path(tag).name and (path.parent / tag).is_dir()
    return "" if inside else f"names {tag[:80]!r}, which is no folder of this checkpoint"


LOOKS: Mapping[str, Callable[[Path], str]] = MappingProxyType(
    {".json": _look_at_json, ".pt": _look_at_pickle, ".safetensors": _look_at_weights}
)


def write_rank_state(folder: Path, content: Any) -> None:
    """Writes this rank's file. On every rank."""
    torch.save(content, _file(folder, rank()))


def read_rank_state(folder: Path, number: int) -> Any:
    """What a rank wrote, as far as `torch.load` reads it safely. Raises InputError where it is gone."""
    path = _file(folder, number)
    if not path.is_file():
        raise InputError(
            f"{path} is absent: without this rank's random numbers another run would go on; needed: the file, or an "
            "older checkpoint (remove this one), or --resume never"
        )
    with loading(folder):
        return torch.load(path, map_location="cpu", weights_only=True)


def _file(folder: Path, number: int) -> Path:
    return folder / f"rank-{number:05d}.pt"
