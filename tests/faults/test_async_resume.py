"""A run whose rollouts are sampled one iteration ahead, killed at any moment: its journal lets it end as if it had not.

Rewards draw random numbers, so that rollouts which were sampled twice, or by other weights, would show.
"""

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from faulting import ENGINES, ROOT, begin_and_wait, lines_once, outcome, steps, workers
from launching import finish, flags, launch, run, words
from test_ppo_resume import AN_ITERATION, NOISY, SCRIPT, kill, left
from test_ppo_resume import TRAIN as PPO

TRAIN = {**PPO, "save_updates": 2 * AN_ITERATION, "eval_updates": 12, "save_total_limit": 2, "async_rollouts": 1}
Words = Callable[..., list]


@pytest.fixture(scope="module")
def asked(talkative_models: dict[str, Path], chats_file: Path) -> Words:
    """The command of a user: `asked(engine, output, **changes)`."""

    def make(engine: str, output: Path, ranks: int = 2, **changes) -> list:
        kind, config = ENGINES[engine]
        values = {"model": talkative_models["gpt2"], "prompts": chats_file, "output": output, **TRAIN, **changes}
        if config:
            values["deepspeed"] = ROOT / "configs" / config
        return launch(kind, *flags(**values), script=SCRIPT, ranks=ranks)

    return make


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


# two iterations follow a checkpoint before the next: each samples for .5 s, and trains
@pytest.mark.parametrize(
    ("engine", "rank", "delay"),
    [("plain", 0, 0.8), slow("plain", 0, 0.2), slow("plain", 0, 0.5), slow("plain", 0, 1.1), slow("zero2", 1, 0.3),
     slow("zero2", 0, 0.9)],
)  # fmt: skip
def test_a_killed_run_ends_as_the_uninterrupted_one(
    engine: str, rank: int, delay: float, asked: Words, whole, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    kill(asked(engine, folder), folder, 8, rank, delay)
    journal = sorted(path.name for path in (folder / "journal").glob("iteration-*"))
    assert any("00000002-rank-00000" in name for name in journal), "the checkpoint's own"
    done = run(asked(engine, folder), **NOISY)
    assert done.returncode == 0, done.stderr[-3000:]
    said = words(done.stdout)
    assert "resuming from" in said
    assert "the rollouts of iteration 3 are read from the journal" in said
    assert left(folder) == left(whole(engine))
    assert outcome(folder) == ("finished", 0)


@pytest.mark.slow
def test_killed_again_and_again_it_still_ends_the_same(asked: Words, whole, tmp_path: Path) -> None:
    chance, folder = random.Random("ahead"), tmp_path / "run"
    for _ in range(3):
        kill(asked("plain", folder), folder, max(8, (steps(folder) or [0])[-1]), 0, chance.uniform(0, 2))
    assert run(asked("plain", folder), **NOISY).returncode == 0
    assert left(folder) == left(whole("plain"))


@pytest.mark.slow
def test_a_stopped_run_saves_what_was_sampled_ahead(asked: Words, whole, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    launched = begin_and_wait(asked("plain", folder), folder, 8, LMGYM_TEST_SLEEP="0.5", **NOISY)
    os.kill(workers(launched, SCRIPT)[0], signal.SIGTERM)
    assert finish(launched).returncode == 75
    assert steps(folder)[-1] == 12, "at the end of the iteration, between two checkpoints"
    assert run(asked("plain", folder), **NOISY).returncode == 0
    assert left(folder) == left(whole("plain"))


def test_without_its_journal_a_run_samples_anew_and_says_so(asked: Words, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    kill(asked("plain", folder), folder, 8, 0, 0.0)
    for path in (folder / "journal").iterdir():
        path.write_bytes(path.read_bytes()[:-100])
    done = run(asked("plain", folder), **NOISY)
    assert done.returncode == 0, done.stderr[-3000:]
    said = words(done.stdout)
    assert "iteration 3 is sampled anew, not from the journal: iteration-00000002-rank-00000.pt cannot be read" in said
    ages = {line["step"]: line["rollout/staleness"] for line in lines_once(folder / "metrics.jsonl") if line["step"]}
    assert ages == {4: 0, 8: 4, 12: 0, 16: 4, 20: 4, 24: 4}


@pytest.mark.slow
def test_on_another_number_of_ranks_it_samples_anew_and_says_so(asked: Words, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    kill(asked("zero2", folder), folder, 8, 0, 0.0)
    done = run([*asked("zero2", folder, ranks=1), "--reshard"], **NOISY)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "not from the journal: iteration-00000002-rank-00000.pt was written by 2 rank(s)" in words(done.stdout)
