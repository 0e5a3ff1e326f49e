"""TRL's own GRPOTrainer learns Blackjack from our exported package, unchanged, by calls of its tool.

LMGYM_TRL names an environment with TRL 1.16, as benchmarks/README.md makes it (`.venv-bench`).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE

from lmgym.apps.interop.export import export

ROOT = Path(__file__).parents[2]
STEPS, GAIN = 60, 0.1
"""steps of 128 games, and the least gain on 512 held-out ones, of a standard error of .06, from about -.4"""


@pytest.mark.slow
def test_trls_trainer_learns_from_the_exported_package(tmp_path: Path) -> None:
    python = Path(os.environ.get("LMGYM_TRL", ROOT / ".venv-bench")) / "bin/python"
    if not python.is_file():
        pytest.skip("needs TRL in an environment of its own: LMGYM_TRL=FOLDER, or .venv-bench (benchmarks/README.md)")
    export("games:blackjack", str(tmp_path / "package"))
    [own] = [path for path in sys.path if path.endswith("site-packages")][:1]
    words = [python, ROOT / "tests/trl_blackjack.py", tmp_path / "package", own, tmp_path / "found.json", STEPS, 0]
    known = {**os.environ, "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "OMP_NUM_THREADS": "1"}
    known.pop("PYTHONPATH", None)
    done = subprocess.run([str(word) for word in words], env=known, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["logged"][0]["tools/call_frequency"] > 0.5, "the policy plays by the tool"
    assert found["logged"][0]["tools/failure_frequency"] < 0.1
    before, after = (one["mean"] for one in found["held_out"])
    assert after - before > GAIN
