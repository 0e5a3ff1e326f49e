"""The number of visible GPUs, for commands that only start others: torch takes two seconds to import."""

import ctypes
import os
import runpy
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path


def visible_gpus() -> int:
    """GPUs that torch sees; 0 without importing it, if its build or this machine can have none."""
    if "torch" not in sys.modules and not _may_have_gpus():
        return 0
    import torch

    return torch.cuda.device_count()


def _may_have_gpus() -> bool:
    """False for a build of torch for CPUs, and for one for CUDA on a machine without NVIDIA's driver."""
    spec = find_spec("torch")
    assert spec, "torch is installed"
    built_for = runpy.run_path(str(Path(str(spec.origin)).with_name("version.py")))  # constants alone
    if built_for.get("hip"):
        return True
    if not built_for.get("cuda"):
        return False
    with suppress(OSError):  # as CUDA's own runtime finds the driver
        ctypes.CDLL("libcuda.so.1")
        return True
    return os.path.exists("/dev/nvidiactl")
