"""GPUs are counted as torch does, which is not imported where its build or the machine can have none."""

import ctypes
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from patience import PATIENCE

from lmgym.runs import gpus


def build(folder: Path, cuda: str | None, hip: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets this folder be torch's, with a version.py as torch's builds have it."""
    (folder / "version.py").write_text(f"cuda = {cuda!r}\nhip = {hip!r}\n")
    spec = importlib.util.spec_from_file_location("torch", folder / "__init__.py")
    monkeypatch.setattr(gpus, "find_spec", lambda name: spec)


@pytest.mark.parametrize(
    ("cuda", "hip", "driver", "device", "expected"),
    [
        (None, None, True, True, False),  # for CPUs, whatever the machine has
        ("13.0", None, False, False, False),
        ("13.0", None, True, False, True),
        ("13.0", None, False, True, True),  # a driver that only torch's own libraries find
        (None, "7.0", False, False, True),  # torch itself must say
    ],
)
def test_builds_and_machines_that_may_have_gpus(
    cuda, hip, driver, device, expected, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str) -> None:
        if not driver:
            raise OSError(f"{name}: cannot open shared object file")

    build(tmp_path, cuda, hip, monkeypatch)
    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(os.path, "exists", lambda path: device)
    assert gpus._may_have_gpus() is expected


def test_the_count_is_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpus.visible_gpus() == torch.cuda.device_count()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    assert gpus.visible_gpus() == 8
    if torch.version.cuda is None and torch.version.hip is None:
        code = "import sys, lmgym.runs.gpus as g; print(g.visible_gpus(), 'torch' in sys.modules)"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True
        )
        assert done.stdout == "0 False\n"
