"""The runs under a folder: which are found, how they ended, and that nothing in a folder breaks the list."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from lmgym.errors import InputError
from lmgym.runs import listing
from lmgym.runs.listing import list_runs, read_run
from lmgym.runs.locks import FolderLock
from lmgym.runs.run import Run


def write_run(folder: Path, **fields: Any) -> Path:
    """A folder with a finished run's record."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {"name": folder.name, "outcome": "finished", "started": "2026-01-01T00:00:00+00:00"}
    (folder / "run.json").write_text(json.dumps(record | fields))
    return folder


def write_metrics(folder: Path, *lines: dict[str, Any]) -> None:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def names(root: Path, depth: int = listing.DEPTH) -> list[str]:
    return [str(run.folder.relative_to(root)) for run in list_runs(root, depth).runs]


def test_runs_are_found_four_folders_deep_the_newest_first(tmp_path: Path) -> None:
    for number, folder in enumerate((".", "a", "a/b/c/d", "b", "a/b/c/d/too_deep")):
        write_run(tmp_path / folder, started=f"2026-01-0{number + 1}T00:00:00+00:00")
    assert names(tmp_path) == ["b", "a/b/c/d", "a", "."]
    assert names(tmp_path, depth=1) == ["b", "a", "."]


def test_the_folders_of_a_run_and_its_former_runs_are_no_runs(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    for folder in ("model", "checkpoints.2", "tensorboard", "wandb", ".hidden"):
        write_run(run / folder)
    shutil.copy(run / "run.json", run / "run.1.json")
    write_run(tmp_path / "model_small")
    os.symlink(run, tmp_path / "link")
    assert sorted(names(tmp_path)) == ["model_small", "run"]


def test_a_run_is_running_while_its_lock_is_held_and_killed_without_it(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", outcome="running")
    assert read_run(folder).outcome == "killed"
    lock = FolderLock(folder)
    assert read_run(folder).outcome == "running"
    assert not read_run(folder).unfinished
    lock.release()
    assert read_run(folder).outcome == "killed"
    assert read_run(folder).unfinished


@pytest.mark.parametrize("outcome", ["interrupted", "failed", "stalled", "non_finite", "collapsed"])
def test_other_outcomes_are_as_recorded_and_unfinished(outcome: str, tmp_path: Path) -> None:
    found = read_run(write_run(tmp_path, outcome=outcome))
    assert found.outcome == outcome
    assert found.unfinished


def test_a_real_run_is_listed_with_its_stage_cost_metric_and_checkpoint(tmp_path: Path) -> None:
    with Run.start(tmp_path / "run", {}, seed=0, tracking="none", stage="ppo") as run:
        run.log(0, {"eval/reward/mean": 0.25})
        run.log(4, {"reward/mean": 9.0, "eval/reward/mean": 0.5})
        run.log(8, {"reward/mean": 9.0, "eval/reward/mean": 0.75})
        run.log(10, {"reward/mean": 9.0})
        for step in (4, 8):
            (run.folder / f"checkpoints/step-{step:08d}").mkdir(parents=True)
        (run.folder / "checkpoints/.step-00000010.partial").mkdir()
        run.record_cost([0.0, 100.0])
    (found,) = list_runs(tmp_path).runs
    assert (found.outcome, found.text("stage"), found.checkpoint) == ("finished", "ppo", 8)
    assert found.metric is not None
    assert (found.metric.name, found.before, found.after) == ("eval/reward/mean", 0.25, 0.75)
    assert found.cost["cpu_seconds"] >= 100


def test_the_final_evaluation_counts_where_there_is_one(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    write_metrics(folder, {"step": 0, "eval/accuracy": 0.5}, {"step": 9, "eval/accuracy": 0.6})
    assert (read_run(folder).before, read_run(folder).after) == (0.5, 0.6)
    (folder / "evaluation.json").write_text(json.dumps({"update": 9, "metrics": {"accuracy": 0.7}}))
    assert (read_run(folder).before, read_run(folder).after) == (0.5, 0.7)


def test_a_run_that_has_only_been_evaluated_before_its_first_update_has_no_value_after(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    write_metrics(folder, {"step": 0, "eval/perplexity": 12.0}, {"step": 3, "train/loss": 1.0})
    assert (read_run(folder).before, read_run(folder).after) == (12.0, None)
    write_metrics(folder, {"step": 3, "train/loss": 1.0})
    assert read_run(folder).metric is None


def test_of_a_long_run_both_ends_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path)
    middle = [{"step": step, "eval/accuracy": 0.1} for step in range(1, 400)]
    write_metrics(folder, {"step": 0, "eval/accuracy": 0.5}, *middle, {"step": 400, "eval/accuracy": 0.9})
    size = (folder / "metrics.jsonl").stat().st_size
    for end in (200, size // 2 - 1, size // 2 + 1, size):
        monkeypatch.setattr(listing, "END_BYTES", end)
        assert (read_run(folder).before, read_run(folder).after) == (0.5, 0.9)


def test_a_line_that_a_kill_cut_and_values_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    lines: list[Any] = [{"step": 0, "eval/accuracy": 0.5}, {"step": 4, "eval/accuracy": 0.6}]
    lines += [{"step": 5, "eval/accuracy": bad} for bad in (None, "0.9", [1], True, 10**400)]
    lines += [{"step": "x", "eval/accuracy": 0.9}, {"eval/accuracy": 0.9}, ["eval/accuracy"]]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_bytes(
        text.encode() + b'\xff\n{"eval/": ' + b"[" * 100_000 + b'\n{"step": 9, "eval/acc'
    )
    (folder / "evaluation.json").write_text("{")
    assert (read_run(folder).before, read_run(folder).after) == (0.5, 0.6)


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


BROKEN = {
    "not valid JSON": lambda path: path.write_text('{"outcome": "fin'),
    "not valid JSON ": lambda path: path.write_bytes(b"\xff\xfe\x00"),
    "not a JSON object": lambda path: path.write_text("[1]"),
    "nested too deeply": lambda path: path.write_text("[" * 1_000_000),
    "not a file": lambda path: path.mkdir(),
    "not a file ": make_pipe,
    "not a file  ": lambda path: path.symlink_to("/nowhere"),
    "bytes, at most": make_huge,
    "Exceeds the limit": lambda path: path.write_text('{"seed": ' + "9" * 5000 + "}"),
}


@pytest.mark.parametrize("reason", BROKEN)
def test_a_broken_record_is_counted_with_its_reason(reason: str, tmp_path: Path) -> None:
    write_run(tmp_path / "good")
    (tmp_path / "bad").mkdir()
    BROKEN[reason](tmp_path / "bad" / "run.json")
    found = list_runs(tmp_path)
    assert [run.folder.name for run in found.runs] == ["good"]
    (problem,) = found.problems
    assert str(tmp_path / "bad" / "run.json") in problem
    assert reason.strip() in problem


@pytest.mark.parametrize("value", [None, 7, [1], {"a": "b"}, "\x1b[31m\u202e", "x" * 1_000_000])
def test_any_value_of_a_record_can_be_listed(value: object, tmp_path: Path) -> None:
    fields = ("name", "outcome", "started", "command", "seconds", "gpus", "former", "stage", "world_size", "error")
    write_run(tmp_path, **dict.fromkeys(fields, value))
    (found,) = list_runs(tmp_path).runs
    assert found.cost["launches"] == 1
    assert isinstance(found.text("name"), str)


def test_a_folder_that_cannot_be_opened_is_counted_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "good")
    (tmp_path / "closed").mkdir()
    scandir = os.scandir

    def refuse(path: Path) -> Any:  # root may open everything
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    found = list_runs(tmp_path)
    assert [run.folder.name for run in found.runs] == ["good"]
    assert found.problems == [f"{tmp_path / 'closed'}: Permission denied"]


def test_a_folder_that_does_not_exist_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist; needed: a folder of runs"):
        list_runs(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file; needed"):
        list_runs(tmp_path / "file")


def test_a_run_that_was_stopped_before_an_evaluation_of_its_trained_model_has_no_result(tmp_path: Path) -> None:
    folder = write_run(tmp_path, outcome="interrupted", stage="preferences")
    write_metrics(folder, {"step": 0, "eval/accuracy": 0.5}, {"step": 1, "train/loss": 0.7}, {"step": 2})
    found = read_run(folder)
    assert (found.before, found.after, found.measured_after, found.interval) == (0.5, None, None, None)
    assert found.why_none == "interrupted after 2 updates, before an evaluation of the trained model"


def test_the_result_is_that_of_the_model_that_is_kept(tmp_path: Path) -> None:
    lines = [{"step": step, "eval/reward/mean": float(step), "eval/eval_scorer": -1.0} for step in (0, 4, 8)]
    write_metrics(write_run(tmp_path, stage="ppo"), *lines)
    assert (read_run(tmp_path).after, read_run(tmp_path).measured_after) == (8, 8)
    write_run(tmp_path, stage="ppo", best_update=4)
    assert (read_run(tmp_path).after, read_run(tmp_path).measured_after) == (4, 4)
