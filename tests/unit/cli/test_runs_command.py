"""`lmgym runs`: what it prints, and that its commands can be pasted into a shell."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from patience import PATIENCE

from lmgym.cli.main import main
from lmgym.cli.runs_table import quote, resume_command
from lmgym.console import clean
from lmgym.runs.listing import read_run
from lmgym.runs.locks import FolderLock


def write_run(folder: Path, **fields: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    record = {"name": folder.name, "outcome": "interrupted", "started": "2026-01-02T03:04:05+00:00", "world_size": 1}
    (folder / "run.json").write_text(json.dumps(record | fields))
    return folder


WIDE = os.environ | {"COLUMNS": "120"}


def listed(*words: object) -> tuple[str, str]:
    """(stdout, stderr) of `lmgym runs`."""
    command = [sys.executable, "-m", "lmgym.cli.main", "runs", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True, env=WIDE)
    return done.stdout, done.stderr


def test_the_table_has_outcome_result_and_cost_and_each_unfinished_run_its_command(tmp_path: Path) -> None:
    fields = {"seconds": 600.0, "cpu_seconds": 900.0, "stage": "reward_models"}
    write_run(tmp_path / "done", outcome="finished", gpus=8, command="python done.py", **fields)
    write_run(tmp_path / "dead", outcome="running", command="python 'two words.py' --seed 3", **fields)
    former = {"launches": 2, "seconds": 1200.0, "cpu_seconds": 2700.0, "gpu_seconds": 0.0}
    write_run(tmp_path / "failed", outcome="failed", error="InputError: no critic", former=former, **fields)
    for name in ("done", "dead"):
        after = {"eval/accuracy": 0.625, "eval/accuracy_low": 0.5712, "eval/accuracy_high": 0.69}
        lines = [
            {"step": 0, "eval/accuracy": 0.5},
            {"step": 9, **(after if name == "done" else {"eval/accuracy": 0.6})},
        ]
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "dead/checkpoints/step-00000040").mkdir(parents=True)
    out, err = listed(tmp_path)
    table = [" ".join(line.split()) for line in out.splitlines()]
    cells = {line.partition(" ")[0]: line for line in reversed(table)}
    assert err == ""
    assert cells["done"] == "done finished accuracy of pairs 0.5 -> 80 min GPU 01-02 03:04"
    below = table.index(cells["done"])
    assert table[below + 1 : below + 3] == ["0.625 (0.571 to 0.69)", "after update 9"]
    assert cells["dead"] == "dead killed accuracy of pairs 0.5 -> 15 min CPU 01-02 03:04"
    assert cells["failed"] == "failed failed, 60 min CPU 01-02 03:04"
    lines = out.splitlines()
    at = next(
        i
        for i, line in enumerate(lines)
        if line.startswith(f"{tmp_path}/dead: killed; this resumes it from update 40:")
    )
    assert lines[at + 1] == "python 'two words.py' --seed 3"
    assert (
        f"{tmp_path}/failed: failed: InputError: no critic; its command is not in {tmp_path}/failed/run.json" in lines
    )
    assert "done.py" not in out


def test_eighty_columns_hold_the_table(tmp_path: Path) -> None:
    experiment = "messages_of_the_first_days_of_users/12"
    folder = write_run(tmp_path / experiment, outcome="interrupted", seconds=90000.0, gpus=1, name="another_name")
    line = {"step": 9, "eval/perplexity": 1234.5, "eval/perplexity_low": 1200.25, "eval/perplexity_high": 1300.75}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    command = [sys.executable, "-m", "lmgym.cli.main", "runs", str(tmp_path)]
    environment = os.environ | {"COLUMNS": "80"}
    out = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True, env=environment).stdout
    table = [line for line in out.partition("\n\n")[0].splitlines() if not line.startswith("runs in")]
    assert max(map(len, table)) <= 80
    for cell in ("interrupted", "1.23e+03", "(1.2e+03 to 1.3e+03)", "25.0 h GPU", "01-02 03:04"):
        assert any(cell in line for line in table), cell


def trained(folder: Path, stage: str, **fields: Any) -> Path:
    (write_run(folder, outcome="finished", stage=stage, **fields) / "model").mkdir()
    return folder


def test_each_experiment_has_the_command_to_type_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    root = Path("outputs")
    data = str(tmp_path / "two words.jsonl")
    scorer = {"name": "hh", "config": {"dataset": data}, "started": "2026-02-02"}
    trained(root / "hh/2", "reward_models", **scorer)
    trained(root / "hh", "reward_models", **(scorer | {"started": "2026-02-01"}))
    trained(root / "chat", "sft", started="2026-01-05")
    trained(root / "ppo", "ppo", started="2026-01-04")
    write_run(root / "odd", outcome="finished", started="2026-01-03")
    lock = FolderLock(write_run(root / "now", outcome="running", started="2026-01-02"))
    # the model of `lmgym get` has a record too
    write_run(root / "models/smollm2")
    (root / "models/smollm2/run.json").write_text(json.dumps({"name": "get smollm2", "source": {}, "files": {}}))
    out, err = listed(root)
    lock.release()
    assert err == ""
    assert out.partition("next:\n")[2].splitlines() == [
        "lmgym train ppo hh_harmless --model outputs/chat/model --scorers hh=outputs/hh/2/model "
        "--prompts 'two words.jsonl'",
        "lmgym compare outputs/hh outputs/hh/2",
        "lmgym chat outputs/chat/model",
        "lmgym chat outputs/ppo/model",
        "lmgym report outputs/odd",
        "lmgym watch outputs/now",
    ]
    assert "smollm2" not in out
    objects = [json.loads(line) for line in listed(root, "--json")[0].splitlines()]
    assert objects[1]["next_command"].startswith("lmgym train ppo hh_harmless ")


def test_a_folder_without_runs_says_so_and_one_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    assert listed(tmp_path)[0].startswith(f"no run is in {tmp_path}")
    refused = CliRunner().invoke(main, ["runs", str(tmp_path / "nowhere")])
    assert refused.exit_code == 2


def test_json_has_an_object_per_run_and_problems_go_to_stderr(tmp_path: Path) -> None:
    write_run(tmp_path / "new", started="2026-02-01", command="python a.py", name="caf\u00e9 \x7f\x1b[0m\u202e")
    write_run(tmp_path / "old", started="2026-01-01", outcome="finished")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/run.json").write_text("{")
    out, err = listed(tmp_path, "--json")
    new, old = map(json.loads, out.splitlines())
    assert (new["folder"], new["outcome"], new["resumed"]) == (str(tmp_path / "new"), "interrupted", 0)
    assert new["name"] == "caf\u00e9 \x7f\x1b[0m\u202e"
    assert (new["resume_command"], old["resume_command"]) == ("python a.py", None)
    assert out.isascii()
    assert clean(out) == out
    assert "1 could not be read:" in err
    assert "not valid JSON" in err


HOSTILE = "\x1b]0;owned\x07\u202e\u2066\r\ud800"


@pytest.mark.parametrize("value", [HOSTILE, HOSTILE + "\n" + "A" * 1_000_000], ids=["controls", "a megabyte"])
def test_hostile_text_never_reaches_the_terminal_raw_or_whole(value: str, tmp_path: Path) -> None:
    fields = ("name", "outcome", "started", "command", "error", "stage", "cwd", "world_size", "local_world_size")
    folder = write_run(tmp_path / "a\x1b[31m\u202eb", **dict.fromkeys(fields, value))
    (folder / "checkpoints/step-00000001").mkdir(parents=True)
    write_run(tmp_path / "c", command=f"python {value}")
    (tmp_path / "bad\x1b[2J").mkdir()
    (tmp_path / "bad\x1b[2J" / "run.json").write_text("{")
    out, err = listed(tmp_path)
    assert err == ""
    assert clean(out) == out
    assert len(out) < 50_000
    out, err = listed(tmp_path, "--json")
    assert clean(out + err) == out + err
    assert len(out.splitlines()) == 2


@pytest.mark.parametrize(
    "word",
    [
        "plain",
        "two words",
        "it's",
        "",
        "$HOME `id` \\",
        "line\nbreak",
        "\x1b[31m'\\n",
        "caf\u00e9 \u202e",
        "\U000e0041",
    ],
)
def test_a_quoted_word_is_one_printable_line_that_bash_reads_back(word: str) -> None:
    quoted = quote(word)
    assert quoted.isprintable()
    command = f"printf %s {quoted}"
    environment = {"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=True, timeout=PATIENCE, env=environment)
    assert done.stdout.decode() == word


def command_of(folder: Path, *words: str, **fields: Any) -> tuple[list[str], str]:
    """(the words of the command that resumes such a run, the note on it)."""
    command, note = resume_command(read_run(write_run(folder, command=shlex.join(words), **fields)))
    return shlex.split(command), note


def test_the_command_of_one_process_is_the_recorded_one_in_its_folder(tmp_path: Path) -> None:
    words = ["/venv/bin/python", "ppo/x.py", "--name", "two words"]
    assert command_of(tmp_path, *words, cwd=str(Path.cwd())) == (
        words,
        "this starts it again, since it has no checkpoint:",
    )
    assert command_of(tmp_path, *words, cwd="/else where")[0] == ["cd", "/else where", "&&", *words]


def test_the_command_of_a_rank_becomes_that_of_a_launch(tmp_path: Path) -> None:
    rank = ["/venv/bin/python", "-u", "ppo/x.py"]
    found, _ = command_of(tmp_path, *rank, "--seed", "3", world_size=2, local_world_size=2)
    assert found == ["lmgym", "launch", "--num_gpus", "2", "ppo/x.py", "--seed", "3"]
    found, _ = command_of(tmp_path, *rank, "--local_rank=0", "--deepspeed", "zero2", world_size=1)
    assert found == ["lmgym", "launch", "--num_gpus", "1", "ppo/x.py", "--deepspeed", "zero2"]
    found, note = command_of(tmp_path, *rank, world_size=16, local_world_size=8)
    assert found == rank
    assert "on every node (8 ranks each)" in note
    found, note = command_of(tmp_path, "python", "-m", "ppo.x", world_size=2)
    assert (found, note.endswith("by the launcher of before (2 ranks):")) == (["python", "-m", "ppo.x"], True)


RANK = ["/venv/bin/python", "-u", "ppo/x.py", "--local_rank=0", "--seed", "3"]


def test_a_run_by_torchrun_on_two_nodes_is_resumed_by_it(tmp_path: Path) -> None:
    typed = "/venv/bin/torchrun --nnodes 2 --rdzv-endpoint node-a:29500 ppo/x.py --seed 3 --resume never"
    launch = {"command": f"/venv/bin/python {typed}", "slurm_job": "12"}
    found, note = command_of(tmp_path, *RANK, world_size=2, local_world_size=1, launch=launch)
    assert found == ["/venv/bin/python", *typed.split()[:-2]]
    assert note.endswith(
        ", on every node (a --node_rank is each node's own), or by its batch file (it was job 12 of Slurm):"
    )


def test_a_run_by_a_hostfile_is_resumed_on_its_hosts_by_a_line_that_bash_reads(tmp_path: Path) -> None:
    words = ["/venv/bin/python", "-u", "-m", "deepspeed.launcher.launch", "--world_info=x", "ppo/x.py", "--seed", "3"]
    launch = {"command": shlex.join(words), "hosts": {"node-a": 1, "node-b": 2, "$(touch bad)": "'"}}
    folder = write_run(
        tmp_path / "two words", command=shlex.join(RANK), world_size=3, local_world_size=1, launch=launch
    )
    command, note = resume_command(read_run(folder))
    shown = subprocess.run(
        ["bash", "-c", f"lmgym() {{ printf '%s|' \"$@\"; }}; {command}"], capture_output=True, text=True, cwd=tmp_path
    )
    hosts = folder / "hostfile"
    assert shown.stdout == f"launch|--hostfile|{hosts}|--submit|ppo/x.py|--seed|3|", shown.stderr
    assert hosts.read_text() == "node-a slots=1\nnode-b slots=2\n$(touch bad) slots='\n"
    assert not (tmp_path / "bad").exists()
    assert note.endswith(", on 3 hosts:")


def test_a_run_of_lmgym_launch_is_resumed_by_it(tmp_path: Path) -> None:
    launch = {"command": "lmgym launch --hostfile hosts --submit train reward pairs.jsonl", "hosts": {"a": 1, "b": 1}}
    found, note = command_of(tmp_path, *RANK, world_size=2, local_world_size=1, launch=launch)
    assert found == launch["command"].split()
    assert note == "this starts it again, since it has no checkpoint:"


@pytest.mark.parametrize("launch", ["text", {"command": 3}, {"command": "'"}, {"hosts": {}}, None])
def test_a_launch_that_cannot_be_read_leaves_the_command_of_a_rank(tmp_path: Path, launch: object) -> None:
    found, note = command_of(tmp_path, *RANK, world_size=2, local_world_size=1, launch=launch)
    assert found == RANK
    assert "by the launcher of before on every node (1 ranks each)" in note


def test_a_command_that_forced_a_new_run_resumes_it_without(tmp_path: Path) -> None:
    words = ["python", "x.py", "--resume", "never", "--seed", "3"]
    assert command_of(tmp_path, *words, cwd=str(Path.cwd()))[0] == ["python", "x.py", "--seed", "3"]
    words[2:4] = ["--resume=never"]
    assert command_of(tmp_path, *words, cwd=str(Path.cwd()))[0] == ["python", "x.py", "--seed", "3"]


def test_a_command_whose_secret_is_not_recorded_says_so(tmp_path: Path) -> None:
    _, note = command_of(tmp_path, "python", "x.py", "--hub_token", "(redacted)")
    assert "with the values that are (redacted) here" in note
