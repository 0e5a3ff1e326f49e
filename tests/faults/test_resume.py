"""Killed with -9 and resumed, a run ends with exactly the weights and metrics of the uninterrupted one.

Dropout is on, every data step draws random numbers, and the kill comes where it comes: in mid-epoch or at its end.
"""

import json
import random
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from faulting import (
    ENGINES,
    EPOCH,
    UPDATES,
    begin_and_wait,
    digest,
    kill_rank,
    measured,
    newest,
    outcome,
    steps,
    wait_for,
    workers,
)
from launching import finish, run, start

RANKS = {"plain": 1}
Words = Callable[..., list]


def kill_after(words: Words, folder: Path, engine: str, step: int, rank: int, workers_of_data: int = 0) -> None:
    """Starts a run and kills -9 a rank somewhere after it has the checkpoint of a step."""
    begun = words(engine, folder, data_workers=workers_of_data)
    launched = begin_and_wait(begun, folder, step, LMGYM_TEST_SLEEP="0.08")
    kill_rank(launched, rank)
    finish(launched)
    assert step <= steps(folder)[-1] < UPDATES
    assert outcome(folder)[0] != "finished"


def go_on(words: Words, folder: Path, engine: str, workers_of_data: int = 0) -> str:
    """The same command again; what it printed."""
    done = run(words(engine, folder, data_workers=workers_of_data))
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def assert_as_uninterrupted(folder: Path, whole: Path) -> None:
    assert digest(folder) == digest(whole)
    assert measured(folder) == measured(whole)
    assert outcome(folder) == ("finished", 0)


@pytest.mark.parametrize(("engine", "step"), [("plain", 8), ("forked_zero2", EPOCH)])
def test_a_killed_run_ends_as_the_uninterrupted_one(
    engine: str, step: int, words: Words, uninterrupted, tmp_path: Path
) -> None:
    kill_after(words, tmp_path / "run", engine, step, rank=RANKS.get(engine, 2) - 1)
    said = go_on(words, tmp_path / "run", engine, workers_of_data=2)
    assert f"resuming from {tmp_path / 'run' / 'checkpoints'}" in said.replace("\n", "")
    assert_as_uninterrupted(tmp_path / "run", uninterrupted(engine))
    former = json.loads((tmp_path / "run" / "run.1.json").read_text())
    assert former["outcome"] in ("killed", "failed")


@pytest.mark.parametrize(
    "engine", ["plain", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ddp", "zero2", "zero3"))]
)
def test_so_does_one_with_several_heads_and_micro_batches_by_tokens(engine: str, words: Words, tmp_path: Path) -> None:
    changes = {"tokens_per_micro_batch": 400, "heads": 3}
    done = run(words(engine, tmp_path / "whole", **changes))
    assert done.returncode == 0, done.stderr[-3000:]
    launched = begin_and_wait(words(engine, tmp_path / "run", **changes), tmp_path / "run", 8, LMGYM_TEST_SLEEP="0.08")
    kill_rank(launched, RANKS.get(engine, 2) - 1)
    finish(launched)
    assert 8 <= steps(tmp_path / "run")[-1] < UPDATES
    done = run(words(engine, tmp_path / "run", data_workers=2, **changes))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "resuming from" in done.stdout
    assert_as_uninterrupted(tmp_path / "run", tmp_path / "whole")
    saved = [json.loads((tmp_path / name / "model/scorer.json").read_text()) for name in ("whole", "run")]
    assert saved[0] == saved[1]
    assert (saved[0]["reduce"], len(saved[0]["means"])) == ("mean", 3)


# every engine, rank killed and number of data workers; in mid-epoch, at an epoch's end, and in the second epoch
KILLS = [
    (engine, rank, data_workers, (2, EPOCH, 10)[(i + rank + data_workers // 2) % 3])
    for i, engine in enumerate(name for name in ENGINES if not name.startswith("forked"))
    for rank in range(RANKS.get(engine, 2))
    for data_workers in (0, 2)
]


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "rank", "data_workers", "step"), KILLS)
def test_the_matrix_of_kills(
    engine: str, rank: int, data_workers: int, step: int, words: Words, uninterrupted, tmp_path: Path
) -> None:
    kill_after(words, tmp_path / "run", engine, step, rank, data_workers)
    go_on(words, tmp_path / "run", engine, data_workers)
    assert_as_uninterrupted(tmp_path / "run", uninterrupted(engine))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["plain", "zero3"])
def test_killed_again_and_again_at_random_it_still_ends_the_same(
    engine: str, words: Words, uninterrupted, tmp_path: Path
) -> None:
    rng, folder, kills = random.Random(engine), tmp_path / "run", 0
    while kills < 4:
        target = min(UPDATES - 3, (steps(folder) or [0])[-1] + rng.choice([1, 2, 3]))
        launched = begin_and_wait(words(engine, folder), folder, target, LMGYM_TEST_SLEEP="0.08")
        kill_rank(launched, rng.randrange(len(workers(launched))))
        finish(launched)
        kills += 1
    go_on(words, folder, engine)
    assert_as_uninterrupted(folder, uninterrupted(engine))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "pattern", "damage"),
    [
        ("zero2", "global_step*/*zero_pp_rank_1*optim_states.pt", cut),
        ("zero3", "global_step*/zero_pp_rank_0*model_states.pt", Path.unlink),
    ],
)
def test_with_a_damaged_shard_the_run_resumes_from_the_checkpoint_before(
    engine: str, pattern: str, damage: Callable[[Path], None], words: Words, uninterrupted, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    kill_after(words, folder, engine, 6, rank=0)
    damaged = newest(folder)
    damage(next(damaged.glob(pattern)))
    said = go_on(words, folder, engine).replace("\n", "")
    assert f"{damaged} was skipped: global_step" in said
    assert f"resuming from {folder}/checkpoints/step-{int(damaged.name[5:]) - 2:08d}" in said
    assert_as_uninterrupted(folder, uninterrupted(engine))


@pytest.mark.slow
def test_without_its_record_a_run_is_refused_and_resumes_as_the_refusal_says(
    words: Words, uninterrupted, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    kill_after(words, folder, "plain", 4, rank=0)
    (folder / "run.json").unlink()
    refused = run(words("plain", folder))
    assert refused.returncode == 2
    found = re.search("to resume from them: (.*); to start from scratch", refused.stderr)
    assert found, refused.stderr[-2000:]
    subprocess.run(found[1], shell=True, check=True)
    assert "resuming from" in go_on(words, folder, "plain")
    assert_as_uninterrupted(folder, uninterrupted("plain"))


@pytest.mark.slow
def test_a_run_killed_after_its_last_update_only_evaluates_and_saves(
    words: Words, uninterrupted, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    run(words("plain", folder))
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | {"outcome": "running"}))
    last = folder / "last" / "model.safetensors"  # the best is in model/ since its evaluation
    last.unlink()
    go_on(words, folder, "plain")
    assert_as_uninterrupted(folder, uninterrupted("plain"))
    assert last.read_bytes() == (uninterrupted("plain") / "last" / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_a_missing_random_state_is_an_error_and_not_another_run(words: Words, tmp_path: Path) -> None:
    import hashlib

    folder = tmp_path / "run"
    kill_after(words, folder, "ddp", 4, rank=1)
    path = folder / "checkpoints" / f"step-{steps(folder)[-1]:08d}"
    # a manifest that agrees: as if it had been written so
    (path / "rank-00001.pt").unlink()
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"] = [file for file in manifest["files"] if file["path"] != "rank-00001.pt"]
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert hashlib.sha256((path / "rank-00000.pt").read_bytes()).hexdigest() in (path / "manifest.json").read_text()
    done = run(words("ddp", folder))
    assert done.returncode == 1
    assert "rank-00001.pt is missing" in done.stderr
    assert outcome(folder)[0] != "finished"


@pytest.mark.slow
def test_both_ranks_follow_the_first_into_a_numbered_folder_and_resume_there(words: Words, tmp_path: Path) -> None:
    folder, second = tmp_path / "outputs/noisy", tmp_path / "outputs/noisy/2"  # no --output
    first = run(words("plain", ""), tmp_path)
    assert first.returncode == 0, first.stderr[-2000:]
    kept = digest(folder)
    launched = start(words("ddp", ""), tmp_path, LMGYM_TEST_SLEEP="0.08")
    wait_for(lambda: 4 in steps(second), launched=launched)
    kill_rank(launched, 1)
    finish(launched)
    assert outcome(second)[0] != "finished"
    done = run(words("ddp", ""), tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "resuming from outputs/noisy/2/checkpoints/step-" in done.stdout
    assert outcome(second) == ("finished", 0)
    assert digest(folder) == kept
    assert not (folder / "3").exists()


@pytest.mark.slow
def test_other_settings_other_data_and_never(words: Words, held_out_pairs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    kill_after(words, folder, "plain", 4, rank=0)
    other = run(words("plain", folder, learning_rate=2e-3))
    assert other.returncode == 2
    assert "learning_rate was 0.001, now 0.002" in other.stderr
    data = run(words("plain", folder, pairs=held_out_pairs, held_out=held_out_pairs))
    assert data.returncode == 2
    before = steps(folder)
    anew = run(words("plain", folder, learning_rate=2e-3, resume="never", max_updates=2))
    assert anew.returncode == 0, anew.stderr[-2000:]
    assert "going on" not in anew.stdout
    assert outcome(folder / "2") == ("finished", 0)
    assert steps(folder) == before, "the unfinished run is as it was"
