"""TRL's own GRPOTrainer, unchanged, learns from our exported packages: by one reply, and by calls of their tool.

LMGYM_TRL names an environment with TRL 1.16, as benchmarks/README.md makes it (`.venv-bench`).
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE

from lmgym.apps.interop.export import export, module_name

ROOT = Path(__file__).parents[2]


def trained(words: str, steps: int, folder: Path) -> dict[str, Any]:
    """The result of tests/trl_export.py."""
    python = Path(os.environ.get("LMGYM_TRL", ROOT / ".venv-bench")) / "bin/python"
    if not python.is_file():
        pytest.skip("needs TRL in an environment of its own: LMGYM_TRL=FOLDER, or .venv-bench (benchmarks/README.md)")
    export(words, str(folder / "package"))
    [own] = [path for path in sys.path if path.endswith("site-packages")][:1]
    given = folder / "package", module_name(words), own, folder / "found.json", steps, 0
    known = {**os.environ, "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "OMP_NUM_THREADS": "1"}
    known.pop("PYTHONPATH", None)
    command = [str(word) for word in (python, ROOT / "tests/trl_export.py", *given)]
    done = subprocess.run(command, env=known, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "found.json").read_text())


@pytest.mark.slow
def test_a_side_of_a_debate_is_learned_by_its_reply(tmp_path: Path) -> None:
    before, after = (one["mean"] for one in trained("debate:letters", 30, tmp_path)["held_out"])
    assert before < -0.1
    assert after > 0.3


@pytest.mark.slow
def test_a_game_is_played_by_calls_of_the_tool(tmp_path: Path) -> None:
    logged = trained("games:blackjack", 3, tmp_path)["logged"]
    assert len(logged) == 3
    for step in logged:
        assert step["tools/call_frequency"] > 0.5
        assert step["tools/failure_frequency"] < 0.1
        assert -1 <= step["reward"] <= 1
