"""What each rank writes into a checkpoint for itself: a file a rank, which goes on only with the rank that it is of."""

from pathlib import Path
from typing import Any

import torch

from lmgym.checkpoint_contents import loading
from lmgym.engine import rank
from lmgym.errors import InputError


def write_rank(folder: Path, content: Any) -> None:
    """Writes this rank's file. On every rank."""
    torch.save(content, _file(folder, rank()))


def read_rank(folder: Path, number: int) -> Any:
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
