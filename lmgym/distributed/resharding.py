"""A checkpoint of one number of ranks for another: as it is where all ranks hold the same, or through DeepSpeed's
universal checkpoint.
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
    """The folder to resume from with this number of ranks; changes the DeepSpeed config where it is to be converted.

    Collective. The shards are of a verified checkpoint: reading them executes what their pickles say. Raises InputError
    with DeepSpeed's last words where it cannot convert.
    """
    if saved_by == ranks or deepspeed is None:
        return checkpoint
    folder = checkpoint.parent / FOLDER
    said = _convert(checkpoint, folder) if rank() == 0 else ""
    if error := all_gather_objects(said)[0]:
        raise InputError(f"{checkpoint} could not be converted to {ranks} rank(s): {error}")
    deepspeed.setdefault("checkpoint", {})["load_universal"] = True
    return folder


def _convert(source: Path, folder: Path) -> str:
    """Writes a universal copy of a checkpoint; DeepSpeed's last words where it fails."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    tag = _tag(source)
    for path in source.iterdir():
        if path.is_file() and path.name != "latest":
            shutil.copy2(path, folder / path.name)
    words = ["--input_folder", source / tag, "--output_folder", folder / tag, "--inject_missing_state"]
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for name in ("latest", "latest_universal"):
        (folder / name).write_text(tag)
    (source / "latest_universal").unlink(missing_ok=True)  # DeepSpeed notes the tag beside its input too
    return "" if done.returncode == 0 else " ".join((done.stderr or done.stdout).split())[-500:]


def mend_sharded_load(engine: Any, folder: Path) -> None:
    """What DeepSpeed's universal load leaves wrong under ZeRO-3, set right; elsewhere nothing happens. On every rank,
    once it has loaded.

    - Small weights stay gathered, and go on as they were before the load: they are gathered anew.
    - All parts share one tensor of the step that Adam's bias correction counts, so that each part would advance it for
      all: each gets its own.
    - Every group gets the first one's settings, weight decay too: each gets those that were saved for it.
    """
    if not (engine.load_universal_checkpoint() and engine.zero_optimization_stage() == 3):
        return
    zero = engine.optimizer
    saved = torch.load(folder / _tag(folder) / "zero" / "optimizer_state.pt", map_location="cpu", weights_only=False)
    for group, was in zip(zero.optimizer.param_groups, saved["param_groups"], strict=True):
        group.update({name: value for name, value in was.items() if name != "params"})
    for state in zero.optimizer.state.values():
        if isinstance(state.get("step"), torch.Tensor):
            state["step"] = state["step"].clone()
    small = zero.persistent_parameters
    if small:
        small[0].partition(small)
        small[0].all_gather(small)


def _tag(folder: Path) -> str:
    return (folder / "latest").read_text().strip()
