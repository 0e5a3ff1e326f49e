"""One run per folder: the refusal of a second run, and the release of the lock."""

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lmgym.errors import InputError, RunStopped
from lmgym.runs.flags import override
from lmgym.runs.locks import FolderLock, is_free, refuse_if_held
from reward_models.config import RewardModelConfig

HOLD = "import sys, time; from lmgym.runs.locks import FolderLock; lock = FolderLock(sys.argv[1]); "
WAIT = "print('held', flush=True); time.sleep(60)"
# a worker, as those that prepare data: forked, and not told of the end of the process that it belongs to
FORK = (
    "import os; worker = os.fork(); worker or os._exit(time.sleep(60) or 0); print(worker, flush=True); time.sleep(60)"
)


@contextmanager
def holder(folder: Path, then: str = WAIT) -> Iterator[tuple[subprocess.Popen, str]]:
    """A process that has the folder, and what it said."""
    process = subprocess.Popen([sys.executable, "-c", HOLD + then, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def test_a_second_process_is_refused_and_told_who_has_the_folder(tmp_path: Path) -> None:
    with holder(tmp_path) as (process, _):
        with pytest.raises(RunStopped) as caught:
            FolderLock(tmp_path)
    said = str(caught.value)
    assert (caught.value.exit_code, caught.value.outcome) == (73, "refused")
    assert said.startswith(f"{tmp_path} is in use by another run (host {socket.gethostname()}, process {process.pid}, ")
    assert re.search(r"since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00\); wait for it, stop it, or name another", said)


def test_a_refused_process_does_not_take_the_name_of_the_holder_away(tmp_path: Path) -> None:
    with holder(tmp_path) as (process, _):
        for _ in range(2):
            with pytest.raises(RunStopped, match=f"process {process.pid},"):
                FolderLock(tmp_path)


def test_the_lock_of_a_killed_process_is_free_at_once(tmp_path: Path) -> None:
    with holder(tmp_path) as (process, _):
        assert not is_free(tmp_path)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (tmp_path / ".lock").exists()
        FolderLock(tmp_path).release()


def test_a_worker_that_outlives_a_killed_process_does_not_hold_its_lock(tmp_path: Path) -> None:
    with holder(tmp_path, FORK) as (process, worker):
        assert not is_free(tmp_path)
        process.send_signal(signal.SIGKILL)
        process.wait()
        try:
            assert is_free(tmp_path)
        finally:
            os.kill(int(worker), signal.SIGKILL)  # raises where the worker had not outlived it


def test_a_forked_worker_that_ends_leaves_the_lock_to_its_process(tmp_path: Path) -> None:
    with holder(tmp_path, "import os; os.fork() or os._exit(0); os.wait(); " + WAIT):
        assert not is_free(tmp_path)


def test_a_released_folder_can_be_taken_again(tmp_path: Path) -> None:
    first = FolderLock(tmp_path / "new" / "folder")
    assert not is_free(tmp_path / "new" / "folder")
    first.release()
    first.release()
    second = FolderLock(tmp_path / "new" / "folder")
    assert json.loads((tmp_path / "new" / "folder" / ".lock").read_text())["pid"] == os.getpid()
    second.release()


def test_a_lock_file_that_was_left_behind_does_not_hold_the_folder(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text('{"host": "elsewhere", "pid": 1, "started": "long ago"}\n{"cut')
    refuse_if_held(tmp_path)
    lock = FolderLock(tmp_path)
    assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()  # nothing of the former is left
    lock.release()


def test_an_unknown_holder_is_refused_too(tmp_path: Path) -> None:
    with holder(tmp_path):
        (tmp_path / ".lock").write_text("")
        with pytest.raises(RunStopped, match="an unknown process"):
            refuse_if_held(tmp_path)


def test_looking_writes_nothing(tmp_path: Path) -> None:
    refuse_if_held(tmp_path / "none")
    refuse_if_held(tmp_path)
    assert is_free(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with holder(tmp_path):
        before = (tmp_path / ".lock").read_bytes()
        with pytest.raises(RunStopped):
            refuse_if_held(tmp_path)
        assert (tmp_path / ".lock").read_bytes() == before


def test_checking_the_lock_does_not_look_like_a_run(tmp_path: Path) -> None:
    FolderLock(tmp_path).release()
    looking = (tmp_path / ".lock").open()
    fcntl.flock(looking, fcntl.LOCK_SH)
    assert is_free(tmp_path)
    threading.Timer(0.1, looking.close).start()
    FolderLock(tmp_path).release()  # a run waits for the end of a look


def test_an_unwritable_folder_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write a run to .*file/out: Not a directory; free space, or name"):
        FolderLock(tmp_path / "file" / "out")


SMALL = RewardModelConfig("small")


def test_a_command_for_a_folder_in_use_ends_before_anything_is_loaded(tmp_path: Path, capsys) -> None:
    with holder(tmp_path) as (process, _):
        with pytest.raises(SystemExit) as caught:
            override(SMALL, ["--output", str(tmp_path)])
    assert caught.value.code == 73
    assert f"error: {tmp_path} is in use by another run (host " in (said := capsys.readouterr().err)
    assert f"process {process.pid}," in said


def test_a_dry_run_of_a_folder_in_use_is_allowed(tmp_path: Path) -> None:
    with holder(tmp_path):
        assert override(SMALL, ["--output", str(tmp_path), "--dry_run"]).output == str(tmp_path)
    assert override(SMALL, ["--output", str(tmp_path)]).output == str(tmp_path)


def test_a_default_folder_in_use_is_not_refused_here_since_the_run_gets_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with holder(tmp_path / "outputs/small"):
        assert override(SMALL, []).output == "outputs/small"
