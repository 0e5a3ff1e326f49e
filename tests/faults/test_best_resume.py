"""Killed with -9 and resumed, a run keeps the best model, and stops early, as the uninterrupted one."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from faulting import begin_and_wait, digest, kill_rank, measured, outcome, steps
from launching import finish, run

# evaluations between the checkpoints too: what a kill leaves may have a better model than its checkpoint knows of
STOPS = {"max_updates": 80, "learning_rate": 3e-3, "eval_updates": 3, "save_updates": 4, "early_stopping": 3}
Words = Callable[..., list]


def stopped_early(folder: Path) -> int:
    return json.loads((folder / "run.json").read_text())["stopped_early"]


@pytest.fixture(scope="module")
def whole(words: Words, tmp_path_factory) -> Callable[[str], Path]:
    """The folder of an uninterrupted run that stopped early, per engine."""
    done: dict[str, Path] = {}

    def get(engine: str) -> Path:
        if engine not in done:
            done[engine] = tmp_path_factory.mktemp("stopped") / engine
            ended = run(words(engine, done[engine], **STOPS))
            assert ended.returncode == 0, ended.stderr[-3000:]
            assert 9 < stopped_early(done[engine]) < 80
            assert (done[engine] / "last").exists()
        return done[engine]

    return get


@pytest.mark.parametrize(
    "engine", ["plain", *(pytest.param(e, marks=pytest.mark.slow) for e in ("ddp", "zero2", "zero3"))]
)
def test_a_killed_run_keeps_the_best_and_stops_early_as_the_uninterrupted_one(
    engine: str, words: Words, whole, tmp_path: Path
) -> None:
    folder, ends = tmp_path / "run", stopped_early(whole(engine))
    for step in (4, ends // 4 * 4 - 4):
        launched = begin_and_wait(words(engine, folder, **STOPS), folder, step, LMGYM_TEST_SLEEP="0.05")
        kill_rank(launched, 0)
        finish(launched)
        assert outcome(folder)[0] != "finished"
        assert steps(folder)[-1] < ends
    assert (folder / "model" / "config.json").exists(), "a killed run leaves its best model so far"
    done = run(words(engine, folder, **STOPS))
    assert done.returncode == 0, done.stderr[-3000:]
    assert digest(folder) == digest(whole(engine))
    assert measured(folder) == measured(whole(engine))
    assert stopped_early(folder) == ends
    assert outcome(folder) == ("finished", 0)


def test_resumed_from_the_checkpoint_at_which_it_stopped_a_run_neither_trains_on_nor_loses_its_best(
    words: Words, tmp_path: Path
) -> None:
    folder, settings = tmp_path / "run", {**STOPS, "save_updates": 3}
    done = run(words("plain", folder, **settings))
    assert done.returncode == 0, done.stderr[-3000:]
    assert steps(folder)[-1] == stopped_early(folder), "its last checkpoint is of its end"
    before, ends = (digest(folder), measured(folder)), stopped_early(folder)
    # as if it had been killed before the last model was saved
    shutil.rmtree(folder / "last")
    record = json.loads((folder / "run.json").read_text())
    del record["stopped_early"]
    (folder / "run.json").write_text(json.dumps({**record, "outcome": "running"}))
    done = run(words("plain", folder, **settings))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "resuming from" in done.stdout
    assert (digest(folder), measured(folder)) == before
    assert stopped_early(folder) == ends
    assert f"stopped early after update {ends} of 80" in done.stdout.replace("\n", " ")
