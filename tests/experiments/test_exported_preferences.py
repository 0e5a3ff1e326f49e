"""`%export` prints a command that trains a scorer on the exported preferences, as it stands; a policy learns too."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "dumb", "PYTHONPATH": str(ROOT)}


@pytest.mark.slow
def test_the_printed_command_trains_a_scorer_as_it_stands(small_models: dict[str, Path], tmp_path: Path) -> None:
    bot = (
        '"""A small model."""\n'
        "def get_base_model():\n"
        "    from lmgym.generation.local_generation import load_causal\n"
        f"    return load_causal({str(small_models['gpt2'])!r})\n"
        "def get_reward_models():\n"
        "    from lmgym.scoring.random_scorer import RandomScorer\n"
        "    return {'random': RandomScorer()}\n"
    )
    (tmp_path / "small.py").write_text(bot)
    talk = ["talk_to_models", "--experiment_name", "small.py", "--select_model", "random", "--best_of", "3"]
    lines = "hello\n%pick 2\nwhat is new?\n%pick 1\n%export prefs my prefs.jsonl\n"
    said = subprocess.run(
        [sys.executable, str(ROOT / "eval_rewards_api.py"), *talk], input=lines, capture_output=True, text=True,
        cwd=tmp_path, env=ENVIRONMENT, timeout=PATIENCE,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    [command] = [line for line in said.stdout.splitlines() if "--dataset" in line]
    done = subprocess.run(
        command,
        shell=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=PATIENCE,
        env=ENVIRONMENT | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--max_length 512 exceeds what" in done.stdout
    run = json.loads((tmp_path / "outputs/hh_pairwise/run.json").read_text())
    assert run["outcome"] == "finished"
    assert (tmp_path / "outputs/hh_pairwise/model/config.json").is_file()
    policy = ["--model", str(small_models["gpt2"]), "--dataset", "my prefs.jsonl", "--eval_size", "2", "--dry_run"]
    also = subprocess.run(
        [sys.executable, str(ROOT / "preferences/experiments/dpo.py"), *policy], capture_output=True, text=True,
        cwd=tmp_path, env=ENVIRONMENT, timeout=PATIENCE,
    )  # fmt: skip
    assert also.returncode == 0, also.stdout + also.stderr
    assert "2 pairs to train on, 2 to evaluate on" in " ".join(also.stdout.split())
