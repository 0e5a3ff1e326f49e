"""`lmgym replay`: the command of a run on one process; a run from elsewhere runs none of its own files."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE

from lmgym.cli.replay import replay_command
from lmgym.errors import InputError
from lmgym.runs.fields import flatten
from lmgym.runs.launching import experiments
from ppo.config import PPOConfig

OURS = experiments("ppo")["self_play"].resolve()
ROOT = OURS.parents[4]


def flags(values: dict[str, str]) -> list[str]:
    return [word for name, value in values.items() for word in (f"--{name}", value)]


def made_run(folder: Path, command: str, cwd: Path | None = None) -> Path:
    (folder / "episodes").mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"command": command, "cwd": str(cwd or folder), "name": "x"}))
    path = folder / "episodes/rollouts-00000004.jsonl"
    path.write_text("{}\n{}\n")
    return path


def test_a_replay_is_the_command_of_the_run_on_one_process(tmp_path: Path) -> None:
    flags = "--seed 3 --deepspeed zero2 --output outputs/x --opponents=random --local_rank=0"
    wanted = [sys.executable, str(OURS), "--seed", "3", "--replay"]
    path = made_run(tmp_path / "run", f"/usr/bin/python -u lmgym/apps/games/experiments/self_play.py {flags}", ROOT)
    assert replay_command(f"{path}:2") == ([*wanted, f"{path}:2"], ROOT)
    assert replay_command(str(path), flags=["--seed", "4"])[0][-4:] == ["--seed", "4", "--replay", f"{path}:1"]
    moved = made_run(tmp_path / "moved", f"python {OURS} {flags}", tmp_path / "was_here")
    assert replay_command(str(moved)) == ([*wanted, f"{moved}:1"], Path.cwd())
    with pytest.raises(InputError, match=r"there is no .*nothing.jsonl"):
        replay_command(str(tmp_path / "nothing.jsonl:3"))
    for record in ("{}", "[]", '{"command": 3, "cwd": ""}', "{"):
        (tmp_path / "run/run.json").write_text(record)
        with pytest.raises(InputError, match="does not name the experiment"):
            replay_command(str(path))


@pytest.mark.parametrize("name", ["evil.py", "lmgym/apps/games/experiments/self_play.py", "./../run/evil.py"])
def test_a_file_that_only_the_run_names_is_refused_with_the_command_that_names_it(tmp_path: Path, name: str) -> None:
    run, marker = tmp_path / "run", tmp_path / "marker"
    file = run / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"open({str(marker)!r}, 'w').write(' '.join(__import__('sys').argv))")
    path = made_run(run, shlex.join(["python", name, "--seed", "3"])).relative_to(run)
    command = [str(Path(sys.executable).with_name("lmgym")), "replay", str(path)]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=run)
    assert refused.returncode == 2
    assert refused.stderr == (
        f"error: {run}/run.json names {file.resolve()}, none of lmgym's experiments; needed, to run it: lmgym replay "
        f"{path} --experiment {file.resolve()}\n"
    )
    assert not marker.exists()
    named = [*command, "--experiment", str(file.resolve())]
    assert subprocess.run(named, capture_output=True, timeout=PATIENCE, cwd=run).returncode == 0
    assert marker.read_text() == f"{file.resolve()} --seed 3 --replay {run / path}:1"


def test_of_every_setting_only_those_without_code_addresses_or_keys_are_taken(tmp_path: Path, capsys) -> None:
    planted = dict.fromkeys(flatten(PPOConfig("x")), "evil.py:score")
    for values in (planted, dict.fromkeys(planted, "http://evil:1/v1"), dict.fromkeys(planted, "openai:http://evil#m")):
        path = made_run(tmp_path / "run", shlex.join(["python", str(OURS), *flags(values)]))
        assert replay_command(str(path))[0][2:] == ["--replay", f"{path}:1"]
    said = capsys.readouterr().err
    assert "left out of the run's settings: " in said
    assert "--scorers" in said
    plain = dict.fromkeys(planted, "3")
    path = made_run(tmp_path / "run", shlex.join(["python", str(OURS), *flags(plain)]))
    taken = replay_command(str(path))[0][2:-2:2]
    risky = ("scorer", "opponents", "capabilities", "trust", "engine", "push", "critic", "reference", "pool", "replay")
    assert "--model" in taken
    assert not [flag for flag in taken if any(word in flag for word in risky)]


@pytest.mark.parametrize(
    ("environment", "is_taken"),
    [
        ("games:shop", True),
        ("dialogue:taboo/guesser?instances=4", True),
        ("world:0", True),
        ("verifiers:reverse_text", False),
        ("openenv:http://evil:1", False),
        ("gymnasium:evil:Game-v1", False),
        ("pettingzoo:evil.game", False),
        ("evil.py:Game", False),
        ("nothing:x", False),
    ],
)
@pytest.mark.parametrize("form", ["--environment {}", "--environment={}"])
def test_an_environment_is_taken_if_its_name_is_neither_code_nor_an_address(
    environment: str, is_taken: bool, form: str, tmp_path: Path
) -> None:
    words = ["python", str(OURS), *form.format(environment).split(" ")]
    path = made_run(tmp_path / "run", shlex.join(words))
    taken = replay_command(str(path))[0][2:-2]
    assert (environment in " ".join(taken)) == is_taken


def test_a_setting_that_a_replay_leaves_out_can_be_given_again(tmp_path: Path) -> None:
    path = made_run(tmp_path / "run", f"python {OURS} --trust-remote-code --opponents=a.py:f --model a/b@{'0' * 40}")
    command, _ = replay_command(str(path), flags=["--trust_remote_code"])
    assert command[2:] == ["--model", f"a/b@{'0' * 40}", "--trust_remote_code", "--replay", f"{path}:1"]


def test_a_link_into_our_experiments_and_a_run_without_a_file_are_seen_through(tmp_path: Path) -> None:
    path = made_run(tmp_path / "run", "lmgym playpen eval mock")
    with pytest.raises(InputError, match="names no experiment's file; needed: --experiment"):
        replay_command(str(path))
    assert replay_command(str(path), "self_play")[0][1] == str(OURS)
    (tmp_path / "run/evil.py").symlink_to(OURS)
    linked = made_run(tmp_path / "run", "python evil.py")
    assert replay_command(str(linked))[0][1] == str(OURS), "not the link, which may change before it is run"
