"""Devices by torch's names: cpu, cuda, and mps, the GPU of a Mac, on which nothing here has been run."""

from typing import Any

import torch

from lmgym.errors import InputError, listed, one_line, shown


def present_device(name: Any) -> torch.device:
    """The device of a name, or a torch.device. Raises InputError for one that this machine does not have."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        here = ["cpu", *["cuda"] * torch.cuda.is_available(), *["mps"] * torch.backends.mps.is_available()]
        why = one_line(str(error).partition(".")[0], 100)
        raise InputError(f"device {shown(str(name))}: {why}; needed: {listed(here)}") from error
    return device
