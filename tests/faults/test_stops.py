"""Runs that are stopped deliberately: a loss or gradient that is not finite, a stall, a folder in use, no memory."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from faulting import begin_and_wait, outcome, said_by_ranks, steps, workers
from launching import finish, flags, launch, read_lines, run
from safetensors.torch import load_file, save_file

Words = Callable[..., list]
CODES = {"ddp": 1}  # torchrun turns every code into 1


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("engine", "fault"),
    [
        slow("plain", "loss"), ("plain", "gradient"), ("forked_zero2", "gradient"), slow("ddp", "loss"),
        slow("ddp", "gradient"),
        slow("zero1", "loss"), slow("zero1", "gradient"), slow("zero2", "loss"), slow("zero2", "gradient"),
        slow("zero3", "loss"), slow("zero3", "gradient"),
    ],
)  # fmt: skip
def test_a_non_finite_loss_on_one_rank_stops_all_before_the_weights_change(
    engine: str, fault: str, words: Words, tmp_path: Path
) -> None:
    folder, rank = tmp_path / "run", 0 if engine == "plain" else 1
    # four forwards an update in plain, two on each of two ranks: in either the third update is hit
    at = 9 if engine == "plain" else 5
    planted = {"LMGYM_TEST_FAULT": fault, "LMGYM_TEST_AT": str(at), "LMGYM_TEST_RANK": str(rank)}
    done = run(words(engine, folder, save_updates=1), **planted)
    assert done.returncode == CODES.get(engine, 65), done.stderr[-3000:]
    assert outcome(folder) == ("non_finite", 65)
    found = json.loads((folder / "non_finite.json").read_text())
    assert found["update"] == 3
    assert (
        "finite" in found["ranks"][rank]["found"]
        or "inf" in found["ranks"][rank]["found"]
        or "nan" in found["ranks"][rank]["found"]
    )
    rows = found["ranks"][rank]["rows"]
    assert rows
    assert all(row.startswith("few.jsonl:") for row in rows)
    assert steps(folder)[-1] == 2, "the last good checkpoint is there"
    said = " ".join(done.stderr.split())
    assert "the weights are as after update 2" in said
    assert f"the last checkpoint is of step 2 ({folder}/checkpoints/step-00000002)" in said
    # without the fault the same command resumes and succeeds
    again = run(words(engine, folder, save_updates=1))
    assert again.returncode == 0, again.stderr[-3000:]
    assert "step-00000002" in again.stdout.replace("\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["plain", "ddp", "zero2", "zero3"])
def test_a_weight_that_is_not_finite_is_not_saved_and_named(engine: str, words: Words, tmp_path: Path) -> None:
    folder, rank = tmp_path / "run", 0 if engine == "plain" else 1
    at = 9 if engine == "plain" else 5  # in the third update
    planted = {"LMGYM_TEST_FAULT": "weight", "LMGYM_TEST_AT": str(at), "LMGYM_TEST_RANK": str(rank)}
    command = words(engine, folder, save_updates=1, freeze_embeddings=True)
    done = run(command, **planted)
    assert done.returncode == CODES.get(engine, 65), done.stderr[-3000:]
    assert outcome(folder) == ("non_finite", 65)
    said = " ".join(done.stderr.split())
    assert "the weights are not all finite: found nan in model.transformer.wte.weight; they were not saved" in said
    assert f"the last checkpoint is of step 2 ({folder}/checkpoints/step-00000002)" in said
    assert steps(folder)[-1] == 2
    assert "Traceback" not in said_by_ranks(done.stderr)
    assert run(command).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ddp", "zero2", "zero3"])
def test_a_model_with_such_a_weight_is_refused_as_it_is_loaded(
    engine: str, words: Words, dropping: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(dropping, model)
    weights = load_file(model / "model.safetensors")
    weights["transformer.wte.weight"][-1, -1] = torch.nan  # on the last rank
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    done = run(words(engine, tmp_path / "run", model=model))
    assert done.returncode == CODES.get(engine, 2), done.stderr[-3000:]
    said = " ".join(done.stderr.split())
    assert f"error: the weights of {model} are not all finite: found nan in transformer.wte.weight" in said
    assert said.count("error: ") == 1


def test_a_margin_that_fp32_cannot_hold_is_a_rejected_row(dropping: Path, few_pairs: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) | {"margin": 0.1} for line in few_pairs.read_text().splitlines()]
    rows[11]["margin"] = 1e39  # a number to JSON, infinite to fp32
    data = tmp_path / "margins.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = {"model": dropping, "dataset": data, "eval_size": 4, "max_length": 256, "precision": "fp32"}
    done = run(
        launch("fork", *flags(**values, output=tmp_path / "run", global_batch=4, micro_batch=1, tracking="none"))
    )
    assert done.returncode == 0, done.stderr[-3000:]
    [row] = read_lines(tmp_path / "run" / "rejected.jsonl")
    assert (Path(row["file"]).name, row["line"], row["field"]) == ("margins.jsonl", 12, "margin")


@pytest.mark.parametrize("engine", [slow("plain"), "forked_ddp", slow("ddp"), slow("zero3")])
def test_a_stall_names_the_ranks_that_wait_and_ends_the_run(engine: str, words: Words, tmp_path: Path) -> None:
    folder, rank = tmp_path / "run", 0 if engine == "plain" else 1
    planted = {"LMGYM_TEST_FAULT": "stall", "LMGYM_TEST_AT": "5", "LMGYM_TEST_RANK": str(rank)}
    # on a busy machine ZeRO-3 takes ten seconds to set itself up: that is no stall
    done = run(words(engine, folder, stall_timeout=30 if engine == "zero3" else 8), **planted)
    assert done.returncode == CODES.get(engine, 70), done.stderr[-3000:]
    assert outcome(folder) == ("stalled", 70)
    said = " ".join(done.stderr.split())
    assert f"rank {rank}: update" in said
    assert "in loss (noisy_experiment.py" in said
    assert "in loss\n    time.sleep(3600)" in (folder / "stalls" / f"rank-{rank}.txt").read_text()
    if engine != "plain":
        assert "rank 0: update" in said
        assert "all_reduce" in said


def test_a_second_run_is_refused_within_seconds_and_told_who_has_the_folder(words: Words, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = begin_and_wait(words("plain", folder), folder, 2, LMGYM_TEST_SLEEP="0.4")
    began = time.monotonic()
    second = run(words("plain", folder))
    seconds = time.monotonic() - began
    pid = workers(first)[0]
    assert first.process.poll() is None
    assert second.returncode == 73
    assert f"process {pid}, since 20" in second.stderr
    assert seconds < 5, "the bar: refused within 5 s"
    first.process.kill()
    finish(first)
    third = run(words("plain", folder))
    assert third.returncode == 0, "the lock of a killed run is free at once"
    assert json.loads((folder / "run.1.json").read_text())["outcome"] == "killed"


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ddp", "zero2"])
def test_a_second_launch_of_two_ranks_is_refused_too(engine: str, words: Words, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = begin_and_wait(words(engine, folder), folder, 2, LMGYM_TEST_SLEEP="2")
    second = run(words(engine, folder))
    assert first.process.poll() is None
    assert second.returncode == CODES.get(engine, 73)
    assert "is in use by another run" in second.stderr
    assert outcome(folder) == ("running", None), "the first run's record is untouched"
    first.process.kill()
    finish(first)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["plain", "zero2"])
def test_out_of_memory_says_which_batch(engine: str, words: Words, tmp_path: Path) -> None:
    rank = 0 if engine == "plain" else 1
    planted = {"LMGYM_TEST_FAULT": "memory", "LMGYM_TEST_AT": "0", "LMGYM_TEST_RANK": str(rank)}
    done = run(words(engine, tmp_path / "run"), **planted)
    assert done.returncode == 2
    assert "out of memory in a micro-batch of 1 examples" in " ".join(done.stderr.split())


def test_a_stale_lock_of_a_build_is_named_at_the_start(words: Words, tmp_path: Path) -> None:
    lock = tmp_path / "extensions" / "cpu_adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    done = run(words("plain", tmp_path / "run", max_updates=2), TORCH_EXTENSIONS_DIR=str(tmp_path / "extensions"))
    assert done.returncode == 0
    assert f"rm {lock}" in done.stdout.replace("\n", "")


def test_a_disk_too_small_for_the_checkpoints_is_refused_before_training(
    dropping: Path, few_pairs: Path, disk: Path
) -> None:
    values = {"model": dropping, "dataset": few_pairs, "max_length": 256, "save_total_limit": 5000, "tracking": "none"}
    done = run(launch("fork", *flags(**values, output=disk / "run", global_batch=4, micro_batch=1)))
    assert done.returncode == 2
    assert "has 24.0 MiB free; needed: " in done.stderr
    assert "--save_total_limit" in done.stderr
    assert "training:" not in done.stderr
