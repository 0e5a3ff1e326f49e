"""Signals to a launch reach its ranks alone, also where it is the first process of a container."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pexpect
import pytest
from containers import as_first_process
from patience import PATIENCE, wait_until

from lmgym.runs.signals_to_ranks import PREFIX, run_launcher

RANK = """
import os, signal, subprocess, sys, time
folder, place = sys.argv[1], os.environ["LOCAL_RANK"]
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])  # as a tracker's or a loader's
def save(number, frame):
    with open(f"{folder}/{place}", "a") as file:
        file.write(f"{number}\\n")
signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGINT, save)
open(f"{folder}/ready-{place}", "w").close()
while not os.path.exists(f"{folder}/{place}"):
    time.sleep(0.02)
assert child.poll() is None
child.kill()
sys.exit(75)
"""
# it dies of a signal, as DeepSpeed's does
LAUNCHER = """
import os, subprocess, sys
ranks = [subprocess.Popen([sys.executable, *sys.argv[1:]], env={**os.environ, "LOCAL_RANK": str(i)}) for i in range(2)]
sys.exit(max(rank.wait() for rank in ranks))
"""


@pytest.fixture
def launcher(tmp_path: Path) -> list[str]:
    """A launcher of two ranks."""
    (tmp_path / "rank.py").write_text(RANK)
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    return [sys.executable, str(tmp_path / "launcher.py"), str(tmp_path / "rank.py"), str(tmp_path)]


def begin(words: Sequence[Any]) -> subprocess.Popen:
    return subprocess.Popen([*words], stdin=subprocess.DEVNULL, start_new_session=True)


def wait_for_ranks(folder: Path) -> None:
    wait_until(lambda: all((folder / f"ready-{place}").exists() for place in range(2)))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ranks_get_a_signal_once_and_the_launcher_ends_after_them(
    number: int, launcher: list[str], tmp_path: Path
) -> None:
    process = begin([*PREFIX, *launcher])
    wait_for_ranks(tmp_path)
    process.send_signal(number)
    assert process.wait(PATIENCE) == 75
    assert [(tmp_path / place).read_text() for place in "01"] == [f"{number}\n"] * 2


def test_ctrl_c_of_a_terminal_ends_the_launcher_first_and_the_command_after_the_ranks(
    launcher: list[str], tmp_path: Path
) -> None:
    rank = RANK.replace("assert child.poll() is None", "time.sleep(1)")  # the group's children got it too
    (tmp_path / "rank.py").write_text(rank.replace("sys.exit(75)", "open(f'{folder}/saved', 'w').close()"))
    process = begin([*PREFIX, *launcher])
    wait_for_ranks(tmp_path)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(PATIENCE) not in (0, 75)  # the launcher's own
    assert (tmp_path / "saved").exists()


def test_a_command_can_read_from_the_terminal() -> None:
    asks = "import sys; print('asks', flush=True); print('read', sys.stdin.readline(), flush=True)"
    process = pexpect.spawn(PREFIX[0], [*PREFIX[1:], sys.executable, "-c", asks], encoding="utf-8", timeout=PATIENCE)
    process.expect("asks")
    process.sendline("hello")
    process.expect("read hello")


def test_the_first_process_of_a_container_does_too(launcher: list[str], tmp_path: Path) -> None:
    process = begin(as_first_process([*PREFIX, *launcher]))
    wait_for_ranks(tmp_path)
    first = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(first[0]), signal.SIGTERM)
    assert process.wait(PATIENCE) == 75
    assert [(tmp_path / place).read_text() for place in "01"] == ["15\n"] * 2


def test_a_command_without_ranks_gets_the_signal_itself() -> None:
    training = (
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n"
        "print('began', flush=True)\ntime.sleep(600)\n"
    )
    words = [*PREFIX, sys.executable, "-c", training]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "began\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 75


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    words = [*PREFIX, sys.executable, "-c", "import time; print('began', flush=True); time.sleep(2)"]
    process = subprocess.Popen(["nohup", *words], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "began\n"
    process.send_signal(signal.SIGHUP)
    assert process.wait(PATIENCE) == 0


def test_a_kill_of_the_command_ends_its_launcher() -> None:
    child = [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)"]
    process = subprocess.Popen([*PREFIX, *child], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.kill()
    process.wait()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() < deadline, "the training goes on"
        time.sleep(0.1)


def test_a_launcher_that_a_signal_ended_has_the_exit_code_that_shells_give() -> None:
    assert run_launcher([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"], {}) == 137
