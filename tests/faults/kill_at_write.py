"""Runs the noisy experiment and kills itself with -9 at the nth write of the third save (LMGYM_TEST_NTH).

Writes are what reaches the disk: torch.save and safetensors' save (once before, once with half of the file written),
DeepSpeed's save, syncs, the manifest, renames and removals. A number beyond the last write lets the run end, and prints
how many there were.
"""

import os
import shutil
import signal
from pathlib import Path

import torch

from lmgym.runs import checkpoint_files, checkpoints
from lmgym.training import trainer_state

NTH, SAVE = int(os.environ["LMGYM_TEST_NTH"]), 3
AIMED = os.environ.get("RANK", "0") == os.environ.get("LMGYM_TEST_RANK", "0")
seen = {"saves": 0, "writes": 0, "inside": False}


def reached() -> None:
    """One more write; the nth is the last thing that this process does."""
    if seen["inside"] and seen["saves"] == SAVE and AIMED:
        seen["writes"] += 1
        if seen["writes"] == NTH:
            os.kill(os.getpid(), signal.SIGKILL)


def watched(module, name: str, path_at: int | None = None) -> None:
    """Counts the calls of a function, also in the middle of the file that it writes."""
    original = getattr(module, name)

    def call(*arguments, **named):
        reached()
        found = original(*arguments, **named)
        if path_at is not None and seen["writes"] == NTH - 1:
            path = Path(arguments[path_at])
            whole = path.read_bytes()
            path.write_bytes(whole[: len(whole) // 2])
            reached()
            path.write_bytes(whole)
        elif path_at is not None:
            reached()
        return found

    setattr(module, name, call)


watched(torch, "save", 1)
watched(trainer_state, "save_weights", 1)
for module, name in ((os, "fsync"), (os, "rename"), (os, "mkdir"), (shutil, "rmtree"), (checkpoint_files, "file_hash")):
    watched(module, name)
save = checkpoints.Checkpoints.save


def save_and_count(self, *arguments, **named):
    """Save number `SAVE` is the one whose writes are counted."""
    seen["saves"] += 1
    seen["inside"] = True
    try:
        return save(self, *arguments, **named)
    finally:
        seen["inside"] = False


checkpoints.Checkpoints.save = save_and_count  # type: ignore[method-assign]

if __name__ == "__main__":
    from noisy_experiment import CONFIG, NoisyTask

    from lmgym.runs.flags import override
    from lmgym.runs.launch import launch
    from reward_models.pairwise import PairTask
    from reward_models.train import train

    config = override(CONFIG)
    launch(lambda: train(config, NoisyTask(PairTask())))
    if AIMED:
        print(f"writes of a save: {seen['writes']}")
