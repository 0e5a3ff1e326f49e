"""`make demo`, smaller, twice: all steps on two ranks, and one table for one seed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SMALL = {"rows": 4000, "steps": 60, "updates": 32, "users": 20}


def run_small_demo(folder: Path) -> tuple[dict[str, Any], str]:
    """The app's record without its times, and what was printed."""
    code = f"from lmgym.apps.world.demos.toy import run_demo; raise SystemExit(run_demo({str(folder)!r}, 1, **{SMALL}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    record = json.loads((folder / "ab/ab.json").read_text())
    for arm in record["policies"]:
        arm["policy"] = arm["policy"].replace(str(folder), "")
        del arm["seconds"]
    for pair in record["comparisons"]:
        pair["a"], pair["b"] = (pair[side].replace(str(folder), "") for side in "ab")
    return record, done.stdout


@pytest.mark.slow
def test_one_seed_gives_one_table(tmp_path: Path) -> None:
    (first, said), (second, _) = (run_small_demo(tmp_path / name) for name in ("first", "second"))
    assert first == second
    assert len(first["policies"]) == 4
    for stage in ("policy", "scorer", "ppo"):
        record = json.loads((tmp_path / "first" / stage / "run.json").read_text())
        assert (record["outcome"], record["world_size"]) == ("finished", 2)
    assert [word for word in ("conversation length", "PPO, best of 4", "Talk to it") if word not in said] == []
