"""SIGTERM, Ctrl-C and a launcher that dies: a checkpoint at the next update, exit 75, the same end after a relaunch."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from containers import as_first_process
from faulting import SCRIPT, begin_and_wait, digest, measured, outcome, said_by_ranks, steps, wait_for, workers
from launching import BIN, Launched, finish, run, start
from patience import PATIENCE

Words = Callable[..., list]


def to_one_rank(launched: Launched, number: int) -> None:
    os.kill(max(workers(launched).values()), number)


def to_the_group(launched: Launched, number: int) -> None:
    os.killpg(launched.process.pid, number)


def to_the_launcher(launched: Launched, number: int) -> None:
    os.kill(launched.process.pid, number)


def interrupt(words: list, folder: Path, send: Callable[[Launched, int], None], number: int) -> int:
    """Signals a run that has a checkpoint, and waits until its workers are gone; the launcher's exit code."""
    launched = begin_and_wait(words, folder, 2, LMGYM_TEST_SLEEP="0.1")
    pids = list(workers(launched).values())
    send(launched, number)
    wait_for(lambda: not any(_runs(pid) for pid in pids), seconds=60)
    launched.process.wait(60)
    return finish(launched).returncode


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


# torchrun turns every code into 1; a launcher that is signalled itself has its own
CASES = [
    ("plain", to_one_rank, signal.SIGTERM, 75),
    pytest.param("zero2", to_the_launcher, signal.SIGTERM, -signal.SIGTERM, marks=pytest.mark.slow),
    pytest.param("plain", to_one_rank, signal.SIGINT, 75, marks=pytest.mark.slow),
    pytest.param("ddp", to_one_rank, signal.SIGTERM, 1, marks=pytest.mark.slow),
    pytest.param("ddp", to_the_launcher, signal.SIGTERM, 1, marks=pytest.mark.slow),
    pytest.param("ddp", to_the_group, signal.SIGINT, 1, marks=pytest.mark.slow),
    pytest.param("ddp", to_the_launcher, signal.SIGKILL, -9, marks=pytest.mark.slow),
    pytest.param("zero2", to_one_rank, signal.SIGTERM, 75, marks=pytest.mark.slow),
    pytest.param("zero2", to_the_group, signal.SIGINT, None, marks=pytest.mark.slow),
    pytest.param("zero2", to_the_group, signal.SIGTERM, None, marks=pytest.mark.slow),
    pytest.param("zero2", to_the_launcher, signal.SIGKILL, -9, marks=pytest.mark.slow),
    pytest.param("zero3", to_one_rank, signal.SIGTERM, 75, marks=pytest.mark.slow),
    pytest.param("zero3", to_the_group, signal.SIGINT, None, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("engine", "send", "number", "code"), CASES)
def test_a_run_that_is_asked_to_stop_saves_and_resumes_exactly(
    engine: str, send, number: int, code: int | None, words: Words, uninterrupted, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    found = interrupt(words(engine, folder), folder, send, number)
    assert code is None or found == code
    assert found != 0
    assert outcome(folder) == ("interrupted", 75)
    assert 2 <= steps(folder)[-1] < 15
    done = run(words(engine, folder))
    assert done.returncode == 0, done.stderr[-3000:]
    assert digest(folder) == digest(uninterrupted(engine))
    assert measured(folder) == measured(uninterrupted(engine))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["plain", "zero2"])
def test_a_second_signal_stops_at_once_and_the_former_checkpoint_is_complete(
    engine: str, words: Words, uninterrupted, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    launched = begin_and_wait(words(engine, folder), folder, 2, LMGYM_TEST_SLEEP="8")  # an update takes half a minute
    pid = max(workers(launched).values())
    os.kill(pid, signal.SIGTERM)
    time.sleep(3)
    assert _runs(pid), "one signal waits for the update"
    before = steps(folder)
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: not _runs(pid), seconds=5)
    ended = finish(launched)
    assert ended.returncode == 75
    assert steps(folder) == before
    assert outcome(folder)[0] in ("interrupted", "failed")
    done = run(words(engine, folder))
    assert done.returncode == 0, done.stderr[-3000:]
    assert digest(folder) == digest(uninterrupted(engine))


@pytest.mark.parametrize(
    ("engine", "send", "number", "code"),
    [
        ("plain", to_one_rank, signal.SIGINT, 75),
        pytest.param("ddp", to_the_group, signal.SIGINT, 1, marks=pytest.mark.slow),
        pytest.param("zero2", to_the_group, signal.SIGTERM, None, marks=pytest.mark.slow),
        pytest.param("zero3", to_the_group, signal.SIGINT, None, marks=pytest.mark.slow),
    ],
)
def test_a_second_signal_while_the_first_is_handled_stops_with_the_same_code(
    engine: str, send, number: int, code: int | None, words: Words, uninterrupted, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    launched = start(words(engine, folder), LMGYM_TEST_SAVE_SECONDS="30")
    wait_for(lambda: list(folder.glob("checkpoints/.step-*.partial")), launched=launched)
    pids = list(workers(launched).values())
    send(launched, number)
    time.sleep(2.3)
    assert all(map(_runs, pids)), "the first one waits for the save"
    began = time.monotonic()
    send(launched, number)
    wait_for(lambda: not any(map(_runs, pids)), seconds=20)
    assert time.monotonic() - began < 20, "at once: the save would take 30 seconds"
    ended = finish(launched)
    assert ended.returncode == code if code is not None else ended.returncode != 0, ended.stderr[-3000:]
    assert outcome(folder) == ("interrupted", 75)
    assert "noisy_experiment.py" not in said_by_ranks(ended.stderr), "no rank ends in a traceback; launchers may"
    assert steps(folder) == [], "what was being saved is no checkpoint"
    done = run(words(engine, folder))
    assert done.returncode == 0, done.stderr[-3000:]
    assert digest(folder) == digest(uninterrupted(engine))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "namespace", "code"),
    [("zero2", True, 75), ("ddp", True, 1), ("zero2", False, 75)],
    ids=["deepspeed in a container", "torchrun in a container", "deepspeed"],
)
def test_lmgym_launch_passes_a_signal_on_and_ends_after_its_ranks(
    engine: str, namespace: bool, code: int, words: Words, uninterrupted, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    typed = words(engine, folder)
    flags = typed[typed.index(SCRIPT) :]
    launch = [BIN / "lmgym", "launch", "--num_gpus", 2, *flags]
    if namespace:
        launch = as_first_process(launch)
    launched = begin_and_wait(launch, folder, 2, LMGYM_TEST_SLEEP="0.1")
    first = psutil.Process(launched.process.pid)
    (first.children()[0] if namespace else first).send_signal(signal.SIGTERM)
    assert launched.process.wait(PATIENCE) == code
    assert outcome(folder) == ("interrupted", 75)
    assert 2 <= steps(folder)[-1] < 15
    assert finish(launched).returncode == code
    done = run(words(engine, folder))
    assert done.returncode == 0, done.stderr[-3000:]
    assert digest(folder) == digest(uninterrupted(engine))
    assert measured(folder) == measured(uninterrupted(engine))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["zero2", "ddp"])
def test_ranks_below_lmgym_launch_have_more_time_than_a_launcher_leaves_them(
    engine: str, words: Words, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    typed = words(engine, folder)
    launch = [BIN / "lmgym", "launch", "--num_gpus", 2, *typed[typed.index(SCRIPT) :]]
    launched = begin_and_wait(launch, folder, 1, LMGYM_TEST_SLEEP="24")  # an update takes over 40 seconds
    before, began = steps(folder)[-1], time.monotonic()
    launched.process.send_signal(signal.SIGTERM)
    launched.process.wait(PATIENCE)
    finish(launched)
    assert time.monotonic() - began > 35  # torchrun kills after 30
    assert outcome(folder) == ("interrupted", 75)
    assert steps(folder)[-1] > before
