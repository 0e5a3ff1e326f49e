"""Converts a checkpoint to another number of ranks: through DeepSpeed's universal checkpoint, or unchanged without
DeepSpeed, where all ranks hold the same weights.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from lmgym.distributed.ranks import all_gather_objects, rank
from lmgym.errors import InputError

FOLDER = ".resharded"


def fit_to_ranks(checkpoint: Path, saved_by: int, ranks: int, deepspeed: dict[str, Any] | None) -> Path:
    """The folder from which this number of ranks can resume; if it is converted, changes the DeepSpeed config.

    Collective. The checkpoint must be verified: unpickling its shards executes code. Raises InputError with
    DeepSpeed's last output if it cannot convert.
    """
    if saved_by == ranks or deepspeed is None:
        return checkpoint
    folder = checkpoint.parent / FOLDER
    error = all_gather_objects(_convert(checkpoint, folder) if rank() == 0 else "")[0]
    if error:
        raise InputError(f"{checkpoint} could not be converted to {ranks} rank(s): {error}")
    deepspeed.setdefault("checkpoint", {})["load_universal"] = True
    return folder


def _convert(source: Path, folder: Path) -> str:
    """Writes a universal copy of a checkpoint; returns DeepSpeed's last output if it fails, else an empty string."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    tag = _tag(source)
    for path in source.iterdir():
        if path.is_file() and path.name != "latest":
            shutil.copy2(path, folder / path.name)
    arguments = ["--input_folder", source / tag, "--output_folder", folder / tag, "--inject_missing_state"]
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for name in ("latest", "latest_universal"):
        (folder / name).write_text(tag)
    (source / "latest_universal").unlink(missing_ok=True)  # DeepSpeed writes the tag beside its input too
    return "" if done.returncode == 0 else " ".join((done.stderr or done.stdout).split())[-500:]


def repair_universal_load(engine: Any, folder: Path) -> None:
    """Corrects what DeepSpeed's universal load leaves wrong under ZeRO-3; otherwise does nothing. Collective.

    - Small weights stay gathered with their values from before the load: they are partitioned and gathered again.
    - All parts share one step tensor for Adam's bias correction, so each part would advance it for all: each gets its
      own copy.
    - Every group gets the first group's settings, weight decay included: each gets its own saved settings.
    """
    if not (engine.load_universal_checkpoint() and engine.zero_optimization_stage() == 3):
        return
    zero = engine.optimizer
    saved = torch.load(folder / _tag(folder) / "zero" / "optimizer_state.pt", map_location="cpu", weights_only=False)
    for group, saved_group in zip(zero.optimizer.param_groups, saved["param_groups"], strict=True):
        group.update({name: value for name, value in saved_group.items() if name != "params"})
    for state in zero.optimizer.state.values():
        if isinstance(state.get("step"), torch.Tensor):
            state["step"] = state["step"].clone()
    small = zero.persistent_parameters
    if small:
        small[0].partition(small)
        small[0].all_gather(small)


def _tag(folder: Path) -> str:
    return (folder / "latest").read_text().strip()
