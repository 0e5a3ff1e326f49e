"""The lesson on over-optimisation: the gold rises and falls while the reward rises, and an alarm rings."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_gold_rises_and_falls_while_the_reward_rises_and_an_alarm_without_gold_rings(tmp_path: Path) -> None:
    drawn = ["--output", str(tmp_path / "figure.svg")] if find_spec("matplotlib") else []
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/lessons/over_optimisation.py"), "--folder", str(tmp_path), *drawn],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=3500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "figure.svg").is_file() == bool(drawn)
    rows = re.findall(r"^ *(\d+) +(?:[\d.]+|-) +[\d.]+ \| +(.+?)(  ALARM)?$", done.stdout, flags=re.MULTILINE)
    updates = [int(row[0]) for row in rows]
    reward, _, gold = np.array([row[1].split() for row in rows], dtype=np.float64).T
    rings = [bool(row[2]) for row in rows]
    peak = int(gold.argmax())
    assert gold[peak] > 0.1
    assert gold[-1] < gold[peak] - 0.5
    assert reward[-1] > reward[peak] + 0.2
    assert not rings[peak]
    assert any(rings)
    assert f"the alarm rings at update {updates[rings.index(True)]}: " in done.stdout
