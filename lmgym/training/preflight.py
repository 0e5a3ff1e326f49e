"""Problems that can be found before the first update: a small disk, stale locks of builds, idle GPUs."""

import os
import shutil
import time
from pathlib import Path

import torch

from lmgym.aids import aid
from lmgym.distributed.ranks import world_size
from lmgym.errors import InputError

WEIGHT_BYTES, ADAM_BYTES = 4, 8  # fp32, and AdamW's two moments


def checkpoint_bytes(parameters: int, trainable: int, adapters: bool = False) -> int:
    """Size of a checkpoint: every weight, or with adapters the trained ones, in fp32, and AdamW's moments of those."""
    return WEIGHT_BYTES * (trainable if adapters else parameters) + ADAM_BYTES * trainable


@aid("the check of the disk's free space", refuses=True)
def refuse_small_disk(
    folder: Path, parameters: int, trainable: int, checkpoints: int, models: int = 1, adapters: bool = False
) -> None:
    """Raises InputError if the disk cannot hold so many models and checkpoints, and a checkpoint being written."""
    one = checkpoint_bytes(parameters, trainable, adapters)
    needed = one * (checkpoints + 1 if checkpoints else 0) + WEIGHT_BYTES * parameters * models
    free = shutil.disk_usage(folder).free
    if needed > free:
        kept = f"{checkpoints} checkpoints of {_gib(one)}, one being written, and " if checkpoints else ""
        what = "the model" if models == 1 else "the best model and the last"
        raise InputError(
            f"{folder} has {_gib(free)} free; needed: {_gib(needed)} for {kept}{what}; free space, name another "
            "--output, or use a smaller --save_total_limit"
        )


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**28 else f"{size / 2**20:.1f} MiB"


@aid("the search for locks of unfinished builds", list)
def stale_build_locks() -> list[str]:
    """A note on each lock of an unfinished build of a torch extension, for which other processes wait."""
    root = os.environ.get("TORCH_EXTENSIONS_DIR")
    folder = (
        Path(root) if root else Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "torch_extensions"
    )
    lines = []
    for lock in sorted(folder.glob("**/lock")):
        age = max(0.0, time.time() - lock.stat().st_mtime)
        lines.append(
            f"found {lock}, {age / 60:.0f} min old: a build of {lock.parent.name} did not end, and processes that "
            f"need it wait for that lock silently; if no build is running now: rm {lock}"
        )
    return lines


@aid("the count of idle GPUs", list)
def idle_gpus() -> list[str]:
    """A note if this process trains alone on a machine with several GPUs."""
    found = torch.cuda.device_count()
    if world_size() > 1 or found < 2:
        return []
    return [
        f"{found} GPUs are here, and this process uses one; for all of them: deepspeed --num_gpus {found} SCRIPT ..."
    ]
