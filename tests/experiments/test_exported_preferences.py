"""`%export` prints commands that train a scorer on the exported preferences and use it; a policy learns too."""

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
def test_the_printed_commands_train_a_scorer_and_chat_with_it_as_they_stand(
    small_models: dict[str, Path], tmp_path: Path
) -> None:
    talk = [sys.executable, "-m", "lmgym.cli.main", "chat", str(small_models["gpt2"]), "--best_of", "3"]
    lines = "hello\n%pick 2\nwhat is new?\n%pick 1\n%export prefs my prefs.jsonl\n"
    said = subprocess.run(
        talk, input=lines, capture_output=True, text=True, cwd=tmp_path, env=ENVIRONMENT, timeout=PATIENCE
    )
    assert said.returncode == 0, said.stderr
    train, chat = [line for line in said.stdout.splitlines() if line.startswith("lmgym ")]
    path = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        train, shell=True, capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE, env=ENVIRONMENT | path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--max_length 512 exceeds what" in done.stdout
    run = json.loads((tmp_path / "outputs/my prefs/run.json").read_text())
    assert run["outcome"] == "finished"
    assert (tmp_path / "outputs/my prefs/model/adapter/adapter_model.safetensors").is_file()
    again = subprocess.run(
        f"{chat} --json", shell=True, input="hello\n", capture_output=True, text=True, cwd=tmp_path,
        timeout=PATIENCE, env=ENVIRONMENT | path,
    )  # fmt: skip
    assert again.returncode == 0, again.stdout + again.stderr
    turn = json.loads(again.stdout)
    scores = [candidate["scores"]["my_prefs"] for candidate in turn["candidates"]]
    assert len(scores) == 6
    assert scores[turn["selected"]] == max(scores)
    policy = ["--model", str(small_models["gpt2"]), "--dataset", "my prefs.jsonl", "--eval_size", "2", "--dry_run"]
    also = subprocess.run(
        [sys.executable, str(ROOT / "preferences/experiments/dpo.py"), *policy], capture_output=True, text=True,
        cwd=tmp_path, env=ENVIRONMENT, timeout=PATIENCE,
    )  # fmt: skip
    assert also.returncode == 0, also.stdout + also.stderr
    assert "2 pairs to train on, 2 to evaluate on" in " ".join(also.stdout.split())
