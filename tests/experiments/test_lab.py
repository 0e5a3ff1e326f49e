"""`lmgym lab run` as users start it: scorers of their own, a kill, a failure, and the page."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PLAN = """
from lmgym.apps.lab.plan import Plan, Proxy, Run

PLAN = Plan(
    runs=[
        *(Run(proxy, "best_of_n", world=7) for proxy in ("long", "constant")),
        Run("long", "grpo", world=7),
        Run("broken", "grpo", world=7),
    ],
    proxies={
        "long": Proxy(spec="mine.py:words"),
        "constant": Proxy(spec="mine.py:same"),
        "broken": Proxy(spec="mine.py:absent"),
    },
    rows=10_000,
    policy={"epochs": 1, "max_updates": 20},
    flags={"grpo": {"max_updates": 24, "eval_updates": 8, "num_rollouts": 64}},
    prompts=32,
    pool=(16, 8),
)
"""
SCORERS = """
def words(conversations, replies):
    return [len(reply.split()) for reply in replies]

def same(conversations, replies):
    return [0.5] * len(replies)
"""
LMGYM = str(Path(sys.executable).with_name("lmgym"))


def lab(folder: Path) -> subprocess.Popen[str]:
    words = [LMGYM, "lab", "run", "plan.py", "--jobs", "2", "--output", "out"]
    return subprocess.Popen(
        words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


@pytest.mark.slow
def test_a_plan_of_a_users_own_scorers_survives_a_kill_and_a_failure(tmp_path: Path) -> None:
    (tmp_path / "plan.py").write_text(PLAN)
    (tmp_path / "mine.py").write_text(SCORERS)
    killed = lab(tmp_path)
    record = tmp_path / "out/lab.json"
    while not (record.is_file() and "world 7" in json.loads(record.read_text())["steps"]):
        assert killed.poll() is None, killed.communicate()[0]
        time.sleep(0.1)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    made = (tmp_path / "out/world_7/tables/world.json").stat().st_mtime_ns

    again = lab(tmp_path)
    said = again.communicate()[0]
    assert again.returncode == 1, said
    assert (tmp_path / "out/world_7/tables/world.json").stat().st_mtime_ns == made  # what was finished stayed
    assert "steps: 8, of which done: 1" in said
    assert "world 7: pool by constant: FAILED" in said
    assert "world 7: broken_grpo_kl0_seed1: FAILED" in said
    logs = tmp_path / "out/logs"
    assert (
        "all 128 replies the score 0.5: there is nothing to optimise"
        in (logs / "world_7_pool_by_constant.log").read_text()
    )
    assert "absent" in (logs / "world_7_broken_grpo_kl0_seed1.log").read_text()

    curves = {
        (row["proxy"], row["method"]): row["points"]
        for row in json.loads((tmp_path / "out/figures.json").read_text())["curves"]
    }
    assert {*curves} == {("long", "best_of_n"), ("long", "grpo")}
    best = [point["words"] for point in curves["long", "best_of_n"]]
    assert best == sorted(best)
    assert best[-1] > best[0]
    points = curves["long", "grpo"]
    assert [point["at"] for point in points] == [0, 8, 16, 24]
    assert points[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert "Peaks and ends" in (tmp_path / "out/report.html").read_text()

    plan = (tmp_path / "plan.py").read_text()
    (tmp_path / "plan.py").write_text(plan.replace("rows=10_000", "rows=11_000"))
    other = lab(tmp_path)
    assert "is of another plan's step 'world 7'" in other.communicate()[0]
    assert other.returncode == 2
