"""Arms of an experiment shared among processes: the same results as in one process, and ends of processes."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from patience import wait_until

from lmgym.apps.world import arms
from lmgym.apps.world.ab import Design
from lmgym.apps.world.arms import Arm, deploy_all, processes_for
from lmgym.apps.world.world import World
from lmgym.errors import InputError
from lmgym.report import status_line

WORLD = World(0)


def arms_of(users: int, days: int, policies: int = 1) -> list[Arm]:
    """Arms with the same users for every policy."""
    return Design(users, days, paired=True).arms([np.arange(users)] * policies)


@pytest.fixture
def _a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_line, "on_terminal", lambda: True)
    monkeypatch.setattr(status_line, "REDRAW_SECONDS", 0.0)


def user_days_shown(printed: str, most: int) -> list[int]:
    """The numbers of completed days of users that the status line showed, up to all of them."""
    shown = [text.partition("\x1b[K")[0] for text in printed.split("\r")[1:]]
    assert shown[-1] == "", "the line is erased"
    counts = [int(line.split()[1].partition(f"/{most}")[0]) for line in shown[:-1]]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, most)
    assert shown[-2] == f"simulating: {most}/{most} user-days, policy 2 of 2"
    return counts


@pytest.mark.usefixtures("_a_terminal")
def test_users_behave_the_same_in_two_processes_as_in_one_and_their_completed_days_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(arms, "LEAST_USERS", 20)
    assert [len(part.users) for part in arms_of(61, 5)[0].parts(2)] == [31, 30]
    shared = list(deploy_all(["bots", "bots"], WORLD, arms_of(61, 5, 2), processes=2))
    user_days_shown(capsys.readouterr().err, 610)
    alone = list(deploy_all(["bots", "bots"], WORLD, arms_of(61, 5, 2), processes=1))
    counts = user_days_shown(capsys.readouterr().err, 610)
    assert 305 in counts
    assert len(set(counts)) > 10
    for (found, seconds), (expected, _) in zip(shared, alone, strict=True):
        assert seconds > 0
        for name in ("messages", "replies", "retries"):
            assert np.array_equal(getattr(found.activity, name), getattr(expected.activity, name))
        ours, theirs = found.tables(), expected.tables()
        assert set(ours) == set(theirs) >= {"logs", "gold", "sft"}
        for name, table in ours.items():
            for column in table.column_names:
                both = [tables[name][column].to_numpy() for tables in (ours, theirs)]
                if column == "utility":
                    np.testing.assert_allclose(*both, atol=1e-12)  # a product of so many rows rounds otherwise
                elif both[0].dtype == object:
                    assert ours[name][column].equals(theirs[name][column]), (name, column)
                else:
                    np.testing.assert_array_equal(*both, err_msg=f"{name} {column}")
    lives = [behaviour.activity for behaviour, _ in shared]
    assert not np.array_equal(lives[0].messages, lives[1].messages)  # the same words twice, with other luck


def test_users_are_split_in_order_and_not_into_parts_that_are_too_small() -> None:
    [arm] = arms_of(900, 31)
    assert [len(part.users) for part in arm.parts(16)] == [225] * 4
    assert np.array_equal(np.concatenate([part.users for part in arm.parts(3)]), arm.users)
    assert [len(part.users) for part in arms_of(30, 31)[0].parts(2)] == [30]


def test_the_number_of_processes_depends_on_cores_users_and_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert processes_for(["bots"], arms_of(1000, 31)) == 8
    assert processes_for(["bots"], arms_of(250, 31)) == 2
    assert processes_for(["bots"], arms_of(60, 5)) == 1
    (tmp_path / "model.safetensors").write_bytes(bytes(9))
    assert processes_for([str(tmp_path)], arms_of(1000, 31)) == 8
    monkeypatch.setattr(arms, "MOST_WEIGHT_BYTES", 8)
    assert processes_for([str(tmp_path)], arms_of(1000, 31)) == 1


@pytest.mark.slow  # processes of an A/B test, which few changes touch
def test_a_killed_process_is_reported_with_a_fix() -> None:
    before = {child.pid for child in multiprocessing.active_children()}

    def kill() -> None:
        while not (started := {child.pid for child in multiprocessing.active_children()} - before):
            time.sleep(0.05)
        os.kill(started.pop() or 0, signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    with pytest.raises(InputError, match=r"one of 2 processes .* was killed.*--processes 1"):
        list(deploy_all(["bots"], WORLD, arms_of(2000, 31), processes=2))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
@pytest.mark.parametrize("signal_", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_processes_end_with_their_parent(signal_: signal.Signals, tmp_path: Path) -> None:
    words = ["deploy", "bots", "--users", "20000", "--processes", "2", "--output", str(tmp_path / "logs")]
    command = [sys.executable, "-m", "lmgym.cli.main", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as first:
        try:
            wait_until(lambda: len(workers_of(first.pid)) == 2)
            started = workers_of(first.pid)
            first.send_signal(signal_)
            first.wait(timeout=60)
        finally:
            first.kill()  # Popen would wait for one that hangs
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), seconds=60)
    assert first.returncode


INTERRUPTED = """
from lmgym.apps.world.arms import Arm, deploy_all
from lmgym.apps.world.world import World
from lmgym.generation.protocol import Sampling
import numpy as np

def arms():
    yield Arm(0, np.arange(20000), 31, 0, Sampling())
    raise KeyboardInterrupt

list(deploy_all(["bots"], World(0), arms(), 2))
"""


# Ctrl-C between the start of the second process and the moment from which its parent knows it
AT_A_START = """
import multiprocessing.util, signal
start, started = multiprocessing.util.spawnv_passfds, []

def start_and_press(path, words, fds):
    pid = start(path, words, fds)
    started.extend(word for word in words if "spawn_main" in str(word))
    if len(started) == 2:
        signal.raise_signal(signal.SIGINT)
    return pid

multiprocessing.util.spawnv_passfds = start_and_press
from lmgym.apps.world.arms import Arm, deploy_all
from lmgym.apps.world.world import World
from lmgym.generation.protocol import Sampling
import numpy as np
list(deploy_all(["bots"], World(0), [Arm(0, np.arange(20000), 31, 0, Sampling())], 2))
"""


@pytest.mark.parametrize("script", [INTERRUPTED, pytest.param(AT_A_START, marks=pytest.mark.slow)])
def test_an_interrupt_during_the_submits_does_not_wait_for_their_results(script: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert "KeyboardInterrupt" in done.stderr.splitlines()[-1]


def workers_of(pid: int) -> list[str]:
    """Child processes that multiprocessing started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
