"""benchmarks/on_gpu.py on a GPU, with the tiny model. Skips itself without one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SCRIPT = Path(__file__).parents[2] / "benchmarks/on_gpu.py"


def test_all_ways_of_ppo_run_in_bf16_and_nothing_beats_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    words = ["--models", "tiny", "--parts", "training", "generation", "ppo", "--iterations", "2", "--output", str(path)]
    done = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    record = json.loads(path.read_text())
    assert record["name"] == torch.cuda.get_device_name()
    for run in record["ppo"].values():
        assert run["precision"] == "bf16"
        assert run["checks"]["failed"] == 0
        assert all(phase.get("share", 0.5) <= 1 for phase in run["phases"].values())
        assert run["gib_at_peak"] > 0
