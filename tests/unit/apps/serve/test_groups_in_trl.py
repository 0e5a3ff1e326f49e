"""A judge that compares as the reward of TRL's own GRPOTrainer, over HTTP: groups arrive whole, in their order.

LMGYM_TRL names an environment with TRL 1.16, as benchmarks/README.md makes it (`.venv-bench`).
"""

import json
import math
import os
import subprocess
from pathlib import Path

import pytest
from judge_server import comparing_judge, fenced, judge_servers
from patience import PATIENCE
from reward_servers import start

from lmgym.text import Conversation, Turn

ROOT = Path(__file__).parents[4]
GROUP = 4


def longer(a: str, b: str) -> float:
    return 1 / (1 + math.exp((len(b) - len(a)) / 8))


def rule(prompt: str, begun: str) -> list[dict[str, float]]:
    p = longer(fenced(prompt, "reply-A"), fenced(prompt, "reply-B"))
    return [{"A": p, "B": 1 - p}]


@pytest.fixture
def trl_python() -> Path:
    python = Path(os.environ.get("LMGYM_TRL", ROOT / ".venv-bench")) / "bin/python"
    if not python.is_file():
        pytest.skip("needs TRL in an environment of its own: LMGYM_TRL=FOLDER, or .venv-bench (benchmarks/README.md)")
    return python


@pytest.mark.slow
def test_advantages_of_trls_own_trainer_are_the_strengths_of_each_group_in_its_order(
    trl_python: Path, tmp_path: Path
) -> None:
    pytest.importorskip("fastapi")
    with judge_servers() as serve:
        running = start(f"pick=compare:{serve(rule).spec}", LMGYM_VERDICTS=str(tmp_path / "verdicts.sqlite"))
        script, output = ROOT / "tests/trl_groups.py", tmp_path / "trl.json"
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "OMP_NUM_THREADS": "1"}
        environment.pop("PYTHONPATH", None)
        command = [trl_python, script, running.url, output]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
        assert running.stop() == 0
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(output.read_text())
    judge = comparing_judge(longer, tmp_path)
    of_groups = 0
    for call in found["calls"]:
        for first in range(0, len(call["prompts"]), GROUP):
            some = slice(first, first + GROUP)
            [prompt] = set(call["prompts"][some])
            replies = call["completions"][some]
            [expected] = judge.score_groups([Conversation((Turn("user", prompt),))], [replies])
            assert call["rewards"][some] == pytest.approx(expected, abs=1e-5)
            of_groups += len(set(replies)) > 1
    assert of_groups >= 4, "groups of different replies"
    last, logs = found["calls"][-1], found["logs"]
    count = len(last["rewards"])
    assert logs["prompt"][-count:] == last["prompts"]
    assert logs["completion"][-count:] == last["completions"]
    # strengths sum to 0 in a group, so that what TRL takes away from them is 0
    assert logs["advantages"][-count:] == pytest.approx(last["rewards"], abs=1e-5)
    assert [row["reward"] for row in found["logged"]] == pytest.approx([0.0] * len(found["logged"]), abs=1e-5)
