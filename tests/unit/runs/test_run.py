"""The folder of a run: what is written when, and that nothing is lost."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from full_disk import largest_file
from patience import PATIENCE

from lmgym.errors import InputError, RunStopped
from lmgym.runs.files import storage_full
from lmgym.runs.locks import is_free
from lmgym.runs.resuming import Start
from lmgym.runs.run import Run


def start(folder: Path, **changes: Any) -> Run:
    """A run that tracks nothing but files."""
    return Run.start(folder, **{"config": {"learning_rate": 1e-5}, "seed": 3, "tracking": "none"} | changes)


def record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run.json").read_text())


def lines(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in (folder / name).read_text().splitlines()]


def test_a_run_is_recorded_before_anything_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py", "--name", "two words"])
    start(tmp_path / "deep" / "er", data_fingerprint="abc", config={"learning_rate": 1e-5, "path": Path("x")})
    found = record(tmp_path / "deep" / "er")
    assert (found["outcome"], found["exit_code"], found["seed"], found["data_fingerprint"]) == (
        "running",
        None,
        3,
        "abc",
    )
    assert found["config"] == {"learning_rate": 1e-5, "path": "x"}
    assert (found["pid"], found["world_size"], found["name"]) == (os.getpid(), 8, "er")
    assert found["started"].endswith("+00:00")
    assert found["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"torch", "transformers", "deepspeed", "accelerate", "datasets", "peft"} <= found["versions"].keys()
    assert found["host"]
    assert found["command"] == "python train.py --name 'two words'"


def test_the_commit_is_that_of_the_repository_and_new_files_make_it_dirty(tmp_path: Path) -> None:
    code = "import sys; from lmgym.runs.record import _git; print(_git())"
    # a copy of the package, so that the repository is the test's own
    package = Path(__file__).parents[3] / "lmgym"
    (tmp_path / "lmgym/runs").mkdir(parents=True)
    for name in (
        "__init__.py",
        "aids.py",
        "runs/__init__.py",
        "runs/record.py",
        "runs/launchers.py",
        "runs/node_report.py",
    ):
        (tmp_path / "lmgym" / name).write_text((package / name).read_text())
    (tmp_path / ".gitignore").write_text("__pycache__\n")

    def shell(*words: str) -> str:
        return subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    assert shell(sys.executable, "-c", code) == "None"
    shell("git", "init", "-q")
    shell("git", "add", "-A")
    shell("git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "first")
    commit = shell("git", "rev-parse", "HEAD")
    index = (tmp_path / ".git/index").read_bytes()
    os.utime(tmp_path / ".gitignore", (1, 1))  # from here on `git status` alone would write the index
    assert shell(sys.executable, "-c", code) == str({"commit": commit, "dirty": False})
    assert (tmp_path / ".git/index").read_bytes() == index
    (tmp_path / "experiment.py").touch()
    assert shell(sys.executable, "-c", code) == str({"commit": commit, "dirty": True})


@pytest.mark.parametrize(
    "name", ["hub_token", "HF_TOKEN", "token", "api_key", "wandb_api_key", "aws_secret", "password", "access_keys"]
)
def test_values_named_like_a_secret_are_never_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sys, "orig_argv", ["python", "x.py", f"--{name}", "hunter2", f"--{name}=hunter2", "--seed", "3"]
    )
    run = start(tmp_path, config={name: "hunter2", "group": {name: ["hunter2"]}})
    run.update(**{name: "hunter2"})
    run.finish()
    assert "hunter2" not in "".join(path.read_text() for path in tmp_path.iterdir())
    assert record(tmp_path)["command"].endswith("--seed 3")


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_new_tokens", 64), ("tokens", 9.5), ("pad_token", "[PAD]"), ("group_key", "user"), ("hub_token", None)],
)
def test_values_that_only_look_like_a_secret_are_kept(name: str, value: object, tmp_path: Path) -> None:
    start(tmp_path, config={name: value})
    assert record(tmp_path)["config"] == {name: value}


@pytest.mark.parametrize("flag", ["--max_new_tokens", "--max-new-tokens", "--sample_tokens", "--min_new_tokens"])
def test_a_command_with_numbers_of_tokens_can_be_run_again(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["python", "x.py", flag, "48", f"{flag}=48"]
    monkeypatch.setattr(sys, "orig_argv", [*words, "--new_api_token", "hunter2"])
    start(tmp_path)
    assert shlex.split(record(tmp_path)["command"]) == [*words, "--new_api_token", "(redacted)"]


def test_every_logged_line_is_on_disk_at_once(tmp_path: Path) -> None:
    run = start(tmp_path)
    run.log(1, {"loss": 2.5})
    first = lines(tmp_path)
    run.log(2, {"loss": 2})
    assert [(line["step"], line["loss"]) for line in lines(tmp_path)] == [(1, 2.5), (2, 2.0)]
    assert first == lines(tmp_path)[:1]
    assert 0 <= first[0]["time"] <= lines(tmp_path)[1]["time"] < 60
    assert first[0].keys() == {"step", "time", "loss"}


def test_non_finite_metrics_are_null_and_named(tmp_path: Path) -> None:
    start(tmp_path).log(1, {"loss": float("nan"), "kl/reference": float("-inf"), "reward/mean": 1.0})
    (line,) = lines(tmp_path)
    assert (line["loss"], line["kl/reference"], line["reward/mean"]) == (None, None, 1.0)
    assert line["non_finite"] == ["loss", "kl/reference"]


def test_former_runs_of_a_folder_are_kept_beside_the_new_one(tmp_path: Path) -> None:
    for seed in (1, 2, 3, 4):
        with start(tmp_path, seed=seed) as run:
            run.log(1, {"loss": seed})
    names = ["metrics.1.jsonl", "metrics.2.jsonl", "metrics.3.jsonl", "metrics.jsonl"]
    assert [lines(tmp_path, name)[0]["loss"] for name in names] == [1, 2, 3, 4]
    records = [tmp_path / name.replace("metrics", "run").replace("jsonl", "json") for name in names]
    assert [json.loads(path.read_text())["seed"] for path in records] == [1, 2, 3, 4]


def finished_run(folder: Path) -> None:
    """Writes the files of a stage."""
    with start(folder, seed=1) as run:
        run.log(8, {"loss": 0.5})
        for name in ("checkpoints/step-8", "model/weights", "adapter/a", "critic/c", "samples/000008.jsonl"):
            run.write_json(name, "old")
        for name in ("rejected.jsonl", "evaluation.json", "scores.jsonl", "held_out.jsonl"):
            run.write_json(name, "old")


def contents(folder: Path) -> dict[str, str]:
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_text() for path in paths}


def test_files_of_a_finished_run_are_kept_under_one_number_with_a_note(tmp_path: Path) -> None:
    finished_run(tmp_path)
    (tmp_path / "prompts.jsonl").write_text("the user's own")
    (tmp_path / "critic.1").mkdir()  # something else took that number
    before = contents(tmp_path)
    run = start(tmp_path)
    after = contents(tmp_path)
    assert after.keys() & before.keys() == {"run.json", "metrics.jsonl", "prompts.jsonl"}
    moved = {name.replace(".2.", ".").replace(".2/", "/"): text for name, text in after.items() if ".2" in name}
    assert moved == {name: text for name, text in before.items() if name != "prompts.jsonl"}
    (note,) = run.notes
    assert "kept as run.2.json, metrics.2.jsonl, checkpoints.2, model.2, adapter.2, critic.2, samples.2," in note
    assert start(tmp_path / "new").notes == []


def test_a_command_that_is_refused_leaves_a_finished_run_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished_run(tmp_path)
    before = contents(tmp_path)
    run = start(tmp_path)
    run.write_json("rejected.jsonl", "new")
    run.log(0, {"reward": 1.0})
    run.write_json("samples/000000.jsonl", "new")
    with pytest.raises(InputError), run:
        raise InputError("no critic")
    assert contents(tmp_path) == before
    assert f"{tmp_path} is as it was" in capsys.readouterr().err
    start(tmp_path).finish()  # the lock is free


def test_a_run_with_updates_before_its_error_keeps_its_files(tmp_path: Path) -> None:
    finished_run(tmp_path)
    run = start(tmp_path)
    run.log(1, {"loss": 1.0})
    with pytest.raises(InputError), run:
        raise InputError("sampler and trainer differ")
    assert record(tmp_path)["outcome"] == "failed"
    assert (tmp_path / "model.1" / "weights").exists()
    assert not (tmp_path / "model").exists()


def test_a_run_without_errors_is_finished(tmp_path: Path) -> None:
    with start(tmp_path) as run:
        run.update(data={"rows": 12})
        assert record(tmp_path)["outcome"] == "running"
    found = record(tmp_path)
    assert (found["outcome"], found["exit_code"], found["error"], found["data"]) == ("finished", 0, None, {"rows": 12})
    assert found["ended"] >= found["started"]
    assert found["seconds"] >= 0


@pytest.mark.parametrize(
    ("error", "outcome", "exit_code", "said"),
    [
        (RuntimeError("out of memory\nmore"), "failed", 1, "RuntimeError: out of memory"),
        (InputError("mend this"), "failed", 2, "InputError: mend this"),
        (SystemExit(75), "failed", 75, "SystemExit: 75"),
        (SystemExit("words"), "failed", 1, "SystemExit: words"),
        (KeyboardInterrupt(), "interrupted", 130, None),
    ],
)
def test_an_error_is_the_outcome_and_is_raised(
    error: BaseException, outcome: str, exit_code: int, said: str | None, tmp_path: Path
) -> None:
    with pytest.raises(type(error)) as raised, start(tmp_path):
        raise error
    found = record(tmp_path)
    assert raised.value is error
    assert (found["outcome"], found["exit_code"], found["error"]) == (outcome, exit_code, said)


@pytest.mark.parametrize("is_main", [True, False])
def test_within_a_run_of_any_rank_no_code_ends_the_process_as_if_all_were_well(tmp_path: Path, is_main: bool) -> None:
    real = os._exit
    run = Run.start(tmp_path, {}, seed=0, tracking="none", is_main=is_main)
    with pytest.raises(RunStopped, match=r"^exit\(0\) was called before") as stopped, run:
        os._exit(0)  # as a loss or a callback might
    assert stopped.value.exit_code == 1
    assert os._exit is real
    if is_main:
        assert record(tmp_path)["outcome"] == "failed"


@pytest.mark.parametrize("code", [None, 0])
def test_a_run_that_is_left_by_exit_0_is_not_finished_and_its_process_ends_with_1(tmp_path: Path, code) -> None:
    with (
        pytest.raises(RunStopped, match=r"exit\(0\) was called before the run") as raised,
        start(tmp_path),
    ):
        raise SystemExit(code)
    assert (raised.value.outcome, raised.value.exit_code) == ("failed", 1)
    assert (record(tmp_path)["outcome"], record(tmp_path)["exit_code"]) == ("failed", 1)


def test_the_outcome_that_the_caller_recorded_stays(tmp_path: Path) -> None:
    run = start(tmp_path)
    run.finish("interrupted", 75)
    with pytest.raises(SystemExit), run:
        raise SystemExit(75)
    assert (record(tmp_path)["outcome"], record(tmp_path)["exit_code"]) == ("interrupted", 75)


def test_an_error_after_the_finish_is_not_hidden(tmp_path: Path) -> None:
    run = start(tmp_path)
    run.finish()
    with pytest.raises(RuntimeError), run:
        raise RuntimeError("while saving")
    assert record(tmp_path)["outcome"] == "failed"


def test_other_ranks_write_and_track_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with start(tmp_path / "run", is_main=False, tracking="auto") as run:
        run.log(1, {"loss": 1.0})
        run.update(rows=1)
        run.write_json("report.json", {})
    assert list(tmp_path.iterdir()) == []
    assert "".join(capsys.readouterr()) == ""


def test_any_content_becomes_valid_json_in_the_folder(tmp_path: Path) -> None:
    import numpy

    content = {"path": Path("a"), "inf": float("inf"), "half": numpy.float32(0.5), 3: (1, numpy.arange(2))}
    start(tmp_path).write_json("evaluation/report.json", content)
    found = json.loads((tmp_path / "evaluation" / "report.json").read_text())
    assert found == {"path": "a", "inf": "inf", "half": 0.5, "3": [1, [0, 1]]}


def test_a_folder_that_cannot_be_made_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write a run to .*file/run: Not a directory; .*another folder"):
        start(tmp_path / "file" / "run")


FULL_AT_START = r"cannot write a run to .*: File too large; free space"


@pytest.mark.parametrize("size", [16, 300])  # no room for the lock, or for the record
def test_a_full_disk_at_the_start_is_a_user_error(size: int, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=FULL_AT_START):
        with largest_file(size):
            start(tmp_path / "run")
    assert is_free(tmp_path / "run")


def test_a_run_that_cannot_be_resumed_for_want_of_room_can_be_resumed_later(tmp_path: Path) -> None:
    with start(tmp_path, start=Start("mine")) as run:
        run.log(1, {"loss": 0.5})
    before = contents(tmp_path)
    checkpoint: Any = SimpleNamespace(step=1)
    with pytest.raises(InputError, match=FULL_AT_START):
        with largest_file((tmp_path / "run.json").stat().st_size - 1):
            start(tmp_path, start=Start("mine", checkpoint))
    assert contents(tmp_path).items() >= before.items()
    with start(tmp_path, start=Start("mine", checkpoint)) as run:
        assert record(tmp_path)["resumed_at"] == 1
        assert [line["loss"] for line in lines(tmp_path)] == [0.5]


def test_a_reader_during_a_rewrite_reads_a_complete_file(tmp_path: Path) -> None:
    run = start(tmp_path)
    with (tmp_path / "run.json").open() as reader:
        run.update(rows=5)
        assert "rows" not in json.load(reader)
    assert record(tmp_path)["rows"] == 5


def test_a_failed_write_leaves_the_old_file_and_no_temporary_one(tmp_path: Path) -> None:
    run = start(tmp_path)
    before = record(tmp_path)
    with largest_file(16):
        run.update(rows=5)
    assert run.write_error.startswith(f"{tmp_path / 'run.json'} could not be written ([Errno 27] File too large")
    assert record(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "metrics.jsonl", "run.json"]


WRITES: dict[str, Callable[[Run], None]] = {
    "metrics.jsonl": lambda run: run.log(1, {"loss": 1.0}),
    "run.json": lambda run: run.update(rows=5),
    "evaluation.json": lambda run: run.write_json("evaluation.json", {"accuracy": 0.5}),
    "samples/000004.jsonl": lambda run: run.write_lines("samples/000004.jsonl", [{"reply": "Hello, you."}]),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_full_disk_ends_a_run_with_its_code_and_one_line_on_what_and_how_much_is_free(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = start(tmp_path)

    def write_to_a_full_disk() -> None:
        with largest_file(16), run:
            WRITES[name](run)
            run.log(2, {"loss": 0.5})  # no line comes after one that is lost
            run.write_json("report.json", {})

    with pytest.raises(RunStopped) as caught:
        write_to_a_full_disk()
    said = str(caught.value)
    assert (caught.value.outcome, caught.value.exit_code) == ("failed", 74)
    assert said.startswith(f"{tmp_path / name} could not be written ([Errno 27] File too large")
    assert re.search(r"; [\d,]+ bytes free; free space or repair the folder, then run the same command again$", said)
    assert len(said.splitlines()) == 1
    assert capsys.readouterr().err == ""
    assert (tmp_path / "metrics.jsonl").stat().st_size <= 16
    assert not (tmp_path / "report.json").exists()
    start(tmp_path).finish()  # the lock is free


def test_the_outcome_is_recorded_if_there_is_room_for_it(tmp_path: Path) -> None:
    run = start(tmp_path)
    with pytest.raises(RunStopped), run, largest_file(16):
        run.log(1, {"loss": 1.0})
    found = record(tmp_path)
    assert (found["outcome"], found["exit_code"]) == ("failed", 74)
    assert "metrics.jsonl could not be written" in found["error"]


def _rust(folder: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"a": np.zeros(1000)}, folder / "weights.safetensors")


def _torch(folder: Path) -> None:
    import torch

    torch.save(torch.zeros(200_000), folder / "weights.pt")


@pytest.mark.parametrize("write", [_rust, _torch, lambda folder: (folder / "a").write_text("a" * 100)])
def test_a_full_disk_is_recognised_in_the_errors_of_every_library(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    with pytest.raises(RunStopped) as caught, start(tmp_path / "run"), largest_file(16):
        write(tmp_path)
    assert caught.value.exit_code == 74
    assert caught.value.alone


def test_a_folder_that_is_removed_under_a_run_ends_it_like_a_full_disk(tmp_path: Path) -> None:
    run = start(tmp_path / "run")

    def remove_and_write() -> None:
        shutil.rmtree(tmp_path / "run")
        run.update(rows=5)

    with pytest.raises(RunStopped, match=r"run was deleted, moved or replaced while the run") as caught, run:
        remove_and_write()
    assert caught.value.exit_code == 74


def test_a_full_disk_at_the_end_does_not_hide_the_first_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = start(tmp_path)

    with pytest.raises(RuntimeError, match="the first"), largest_file(16), run:
        raise RuntimeError("the first")
    assert "the outcome is not recorded" in capsys.readouterr().err


def test_a_full_disk_is_said_once_where_neither_a_checkpoint_nor_the_outcome_finds_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = start(tmp_path)

    with pytest.raises(RunStopped, match="the checkpoint"), largest_file(16), run:
        raise storage_full("the checkpoint could not be written", tmp_path)
    assert "the outcome is not recorded" not in capsys.readouterr().err


def test_a_full_disk_at_the_very_end_of_a_run_is_not_a_success(tmp_path: Path) -> None:
    run = start(tmp_path)
    with pytest.raises(RunStopped, match=r"run.json could not be written") as caught:
        with largest_file(16):
            run.__exit__(None, None, None)
    assert caught.value.exit_code == 74


def test_lines_hold_any_text_as_valid_json(tmp_path: Path) -> None:
    rows = [{"text": "\ud800 ü", "score": float("nan"), "of": (1, Path("a"))}]
    start(tmp_path).write_lines("samples/1.jsonl", rows)
    assert lines(tmp_path / "samples", "1.jsonl") == [{"text": "\ud800 ü", "score": "nan", "of": [1, "a"]}]


def test_metrics_reach_the_tracker_too(tmp_path: Path) -> None:
    class Remembering:
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def log(self, step: int, metrics: dict[str, float]) -> None:
            self.seen.append((step, metrics))

        def finish(self) -> None:
            self.seen.append("finished")

    tracker = Remembering()
    with (tmp_path / "metrics.jsonl").open("w") as metrics:
        run = Run(tmp_path, {}, metrics, tracker)
        run.log(4, {"loss": 1})
        run.finish()
    assert tracker.seen == [(4, {"loss": 1.0}), "finished"]


def test_a_run_opens_without_torch() -> None:
    code = "import sys, lmgym.runs.run; sys.exit(int(bool({'torch', 'wandb', 'numpy'} & sys.modules.keys())))"
    assert subprocess.run([sys.executable, "-c", code], timeout=PATIENCE).returncode == 0
