"""Requests to stop, and stalls, in real processes that are signalled, orphaned or stuck."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE

ROOT = Path(__file__).parents[3]
# each script prints what it does in lines, and ends by itself within a minute
# the module that knows the ranks loads torch, which takes seconds: here is one that knows them and nothing else
RANKS = """
import os, sys, types
ranks = sys.modules["lmgym.distributed.ranks"] = types.ModuleType("lmgym.distributed.ranks")
ranks.rank = lambda: int(os.environ.get("RANK", 0))
ranks.world_size = lambda: int(os.environ.get("WORLD_SIZE", 1))
"""
WATCH = (
    RANKS
    + """
import signal, socket, threading, time
from lmgym.runs.interrupts import Interrupts
from lmgym.runs.launchers import launchers
def say(*words): print(*words, flush=True)
def loop(interrupts, seconds=60):
    end = time.monotonic() + seconds
    while not interrupts.reason and time.monotonic() < end:
        time.sleep(0.01)
    return interrupts.reason or "nothing"
interrupts = Interrupts(lambda why: say("leave:", why))
"""
)
# signals of one request come within two seconds; here a second request need not wait for so long
SOON = WATCH + "import lmgym.runs.interrupts\nlmgym.runs.interrupts.SAME_REQUEST_SECONDS = 0.2\n"
UNTIL_ASKED = WATCH + "with interrupts: say('ready'); say('reason:', loop(interrupts))\nsay('over')"
TWO_SECONDS = WATCH + "with interrupts: say('ready'); say('reason:', loop(interrupts, 2.5))"
BLOCKED = {
    "a lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "a socket": "near, far = socket.socketpair(); near.recv(1)",
    "a loop that never looks": "while True: pass",
}
STUCK = SOON + "with interrupts:\n  say('ready')\n  {}"
# a worker gets the signal again from its launchers while its run ends: this is not a second request
LEAVING = (
    SOON
    + "with interrupts:\n  say('ready'); loop(interrupts); interrupts.exit_code = 65; time.sleep(4); say('by itself')"
)
LAUNCHERS = WATCH + "say(*(one.pid for one in launchers()))\n"


class Process:
    """A script in its own process, and its output."""

    def __init__(self, *command: str, **environment: str) -> None:
        known = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
        known |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=known, start_new_session=True, **pipes)

    def line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def send(self, *signals: int, apart: float = 0.3) -> None:
        for i, number in enumerate(signals):
            time.sleep(apart if i else 0)
            self.process.send_signal(number)

    def end(self) -> tuple[int, str, str]:
        """Exit code and the rest of stdout and stderr."""
        out, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out, err


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    """Starts processes, and kills those that a failed test has left."""
    started: list[Process] = []

    def begin(*command: str, **environment: str) -> Process:
        started.append(Process(*command, **environment))
        return started[-1]

    yield begin
    for one in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGKILL)  # they lead groups of their own
        one.process.communicate()


@pytest.fixture
def python(start: Callable[..., Process]) -> Callable[..., Process]:
    """Starts a script and waits until it is ready."""

    def begin(code: str, *arguments: str, **environment: str) -> Process:
        process = start(sys.executable, "-c", code, *arguments, **environment)
        assert process.line() == "ready", process.end()
        return process

    return begin


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2])
def test_one_signal_is_a_request_that_the_loop_handles(python: Callable[..., Process], number: int) -> None:
    process = python(UNTIL_ASKED)
    process.send(number)
    code, out, err = process.end()
    name = signal.Signals(number).name
    assert (code, out) == (0, f"reason: {name}\nover\n")
    assert err == f"{name}: stopping after this update and a checkpoint; a second signal stops at once\n"


def test_only_rank_0_reports_a_request(python: Callable[..., Process]) -> None:
    process = python(UNTIL_ASKED, RANK="1")
    process.send(signal.SIGTERM)
    assert process.end() == (0, "reason: SIGTERM\nover\n", "")


def test_signals_within_two_seconds_are_one_request_and_a_later_one_stops_at_once(
    python: Callable[..., Process],
) -> None:
    process = python(WATCH + f"with interrupts:\n  say('ready')\n  {BLOCKED['a lock']}")
    process.send(signal.SIGINT, signal.SIGTERM, signal.SIGTERM)  # within 0.6 s: a terminal and two launchers
    time.sleep(1)
    assert process.process.poll() is None
    time.sleep(1)
    process.send(signal.SIGTERM)
    code, out, err = process.end()
    assert (code, out) == (75, "leave: SIGTERM, the second request\n")
    assert err.startswith("SIGINT: stopping after this update")
    assert err.count("\n") == 1


@pytest.mark.parametrize("block", BLOCKED)
def test_a_second_request_ends_a_process_that_is_stuck(python: Callable[..., Process], block: str) -> None:
    process = python(STUCK.format(BLOCKED[block]))
    process.send(signal.SIGTERM)
    time.sleep(0.5)
    process.send(signal.SIGINT)
    assert process.end()[:2] == (75, "leave: SIGINT, the second request\n")


def test_a_second_request_ends_the_process_even_if_recording_fails(python: Callable[..., Process]) -> None:
    process = python(STUCK.format("interrupts._record = lambda why: 1 / 0; threading.Lock().acquire(); time.sleep(60)"))
    process.send(signal.SIGTERM)
    time.sleep(0.5)
    process.send(signal.SIGTERM)
    assert process.end()[0] == 75


def test_a_stopping_run_ignores_signals_that_launchers_repeat(
    python: Callable[..., Process],
) -> None:
    process = python(LEAVING.replace(SOON, WATCH))
    process.send(signal.SIGTERM, signal.SIGTERM, signal.SIGINT)
    assert process.end()[:2] == (0, "by itself\n")


def test_a_second_request_ends_a_stopping_run_with_its_recorded_code(
    python: Callable[..., Process],
) -> None:
    process = python(LEAVING)
    process.send(signal.SIGTERM)
    time.sleep(0.5)
    process.send(signal.SIGINT)
    assert process.end()[:2] == (65, "")


def test_a_second_request_does_not_wait_for_a_tracker_that_closes_slowly(python: Callable[..., Process]) -> None:
    process = python(STUCK.format("interrupts._record = lambda why: time.sleep(30); threading.Event().wait()"))
    process.send(signal.SIGTERM)
    time.sleep(0.5)
    began = time.monotonic()
    process.send(signal.SIGTERM)
    assert process.end()[0] == 75
    assert time.monotonic() - began < 15


# each place of a run's end in which a signal may arrive, and the seconds that the run spends there
ENDINGS = {
    "closing its files": "time.sleep(4)",
    "the exit handlers": "atexit.register(lambda: time.sleep(4))",
    "the end of threads": "threading.Thread(target=lambda: time.sleep(4)).start()",
    "the interpreter's own end": "sys.modules['slow'] = Slow()",
}
ENDING = (
    SOON
    + """
import atexit
from lmgym.errors import RunStopped
from lmgym.runs.launch import launch
class Slow:
    def __del__(self, sleep=time.sleep): sleep(4)
def run():
    with interrupts:
        say('ready'); loop(interrupts)
        interrupts.exit_code = 75
        {}
        raise RunStopped("stopped after update 4", "interrupted", 75)
launch(run)
"""
)


@pytest.mark.parametrize(
    ("place", "number"),
    [*((place, signal.SIGINT) for place in ENDINGS), ("the interpreter's own end", signal.SIGTERM)],
)
def test_wherever_a_second_request_arrives_while_a_run_ends_the_code_is_75(
    python: Callable[..., Process], place: str, number: int
) -> None:
    process = python(ENDING.format(ENDINGS[place]))
    process.send(number)
    time.sleep(0.5)
    process.send(number)
    code, _, err = process.end()
    assert code == 75, err
    assert "Traceback" not in err


def test_after_the_watch_signals_do_what_they_did_before(python: Callable[..., Process]) -> None:
    process = python(WATCH + "with interrupts: pass\nsay('ready'); time.sleep(60)")
    process.send(signal.SIGTERM)
    assert process.end()[0] == -signal.SIGTERM


def test_a_notebook_continues_after_a_run_that_was_asked_to_stop(python: Callable[..., Process]) -> None:
    process = python(SOON + "with interrupts: say('ready'); loop(interrupts)\nsay('over'); time.sleep(60)")
    process.send(signal.SIGTERM)
    assert process.line() == "over"
    time.sleep(0.5)
    process.send(signal.SIGINT)
    code, _, err = process.end()
    assert code == -signal.SIGINT
    assert "KeyboardInterrupt" in err


def launcher(folder: Path, name: str, code: str) -> list[str]:
    """The command of a launcher of that name, which prints its process id, starts a worker and waits for it."""
    (folder / "worker.py").write_text(code)
    (folder / name).write_text(
        "import os, subprocess, sys\n"
        "print(os.getpid(), flush=True)\n"
        f"subprocess.run([sys.executable, {str(folder / 'worker.py')!r}], env={{**os.environ, 'LOCAL_RANK': '0'}})\n"
    )
    return [sys.executable, str(folder / name)]


def test_a_worker_stops_when_its_launcher_is_killed(tmp_path: Path, start: Callable[..., Process]) -> None:
    process = start(*launcher(tmp_path, "torchrun", LAUNCHERS + UNTIL_ASKED))
    pid = process.line()
    assert pid == str(process.process.pid)
    assert process.line() == pid  # which the worker has found
    assert process.line() == "ready"
    process.send(signal.SIGKILL)
    # the worker has the pipes still, and its end is theirs
    assert process.end()[:2] == (-signal.SIGKILL, f"reason: the launcher (process {pid}) is dead\nover\n")


def test_a_worker_is_not_asked_to_stop_while_its_launcher_lives(tmp_path: Path, start: Callable[..., Process]) -> None:
    process = start(*launcher(tmp_path, "torchrun", TWO_SECONDS))
    assert process.end()[1].splitlines()[1:] == ["ready", "reason: nothing"]


def test_a_launcher_above_a_launcher_is_watched_too(tmp_path: Path, start: Callable[..., Process]) -> None:
    """`deepspeed` starts `deepspeed.launcher.launch`, which starts the workers."""
    (tmp_path / "inner").mkdir()
    inner = launcher(tmp_path / "inner", "torchrun", LAUNCHERS + TWO_SECONDS)
    process = start(*launcher(tmp_path, "accelerate", f"import os; os.execv({inner[0]!r}, {inner!r})"))
    outer_pid, inner_pid, found = process.line(), process.line(), process.line()
    assert found == f"{inner_pid} {outer_pid}"
    assert process.end()[0] == 0


def test_a_shell_that_names_a_launcher_is_not_a_launcher(tmp_path: Path, start: Callable[..., Process]) -> None:
    command = shlex.join(launcher(tmp_path, "torchrun", LAUNCHERS))
    process = start("bash", "-c", f"{command}; true")
    pid = process.line()
    assert pid != str(process.process.pid)
    assert process.end()[1] == f"{pid}\n"
    (tmp_path / "worker.py").write_text(LAUNCHERS)
    # a worker right below a shell
    words = f"{sys.executable} {tmp_path / 'worker.py'}; : /usr/bin/torchrun"
    assert start("bash", "-c", words, LOCAL_RANK="0").end()[:2] == (0, "\n")


def test_a_worker_without_a_launcher_watches_none(tmp_path: Path, start: Callable[..., Process]) -> None:
    command = launcher(tmp_path, "torchrun", "import os; del os.environ['LOCAL_RANK']\n" + LAUNCHERS)
    assert start(*command).end()[1].splitlines()[1:] == [""]


STALL = (
    RANKS
    + """
import threading, time
from pathlib import Path
from lmgym.runs.stalls import StallWatch
def say(*words): print(*words, flush=True)
folder, timeout, beats = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
def waits_for_a_friend():
    lock = threading.Lock(); lock.acquire(); lock.acquire(timeout=30)
def reward():
    import re
    re.match(r"(a+)+$", "a" * 60 + "b")
with StallWatch(folder, timeout) as watch:
    say("ready")
    for i in range(beats):
        watch.heartbeat(f"update {i}"); time.sleep(0.2)
    if not beats: watch.heartbeat("update 7")
    if "regex" in sys.argv: threading.Thread(target=reward).start()
    if not beats: waits_for_a_friend()
say("went on")
"""
)


def test_a_stall_ends_the_process_and_reports_where_it_is(tmp_path: Path, python: Callable[..., Process]) -> None:
    (tmp_path / "run.json").write_text('{"outcome": "running", "started": "2020-01-01T00:00:00+00:00"}')
    code, _, err = python(STALL, str(tmp_path), "1", "0").end()
    stacks = (tmp_path / "stalls" / "rank-0.txt").read_text()
    assert code == 70
    first = stacks.splitlines()[0]
    assert re.fullmatch(r"update 7; no progress for \d+ s; now in waits_for_a_friend \(<string>:\d+\)", first)
    assert "\nMainThread:\n" in stacks
    assert "in waits_for_a_friend\n" in stacks
    head, _, rest = err.strip().partition(" s (")
    assert head.startswith("error: no progress for ")
    assert rest == f"--stall_timeout 1). rank 0: {first}; stacks in {tmp_path / 'stalls'}"
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["outcome"], record["exit_code"]) == ("stalled", 70)
    assert first in record["error"]


def test_a_stall_is_reported_whatever_holds_the_interpreter(tmp_path: Path, python: Callable[..., Process]) -> None:
    code, _, err = python(STALL, str(tmp_path), "1", "0", "regex").end()
    assert code == 70
    assert re.search(r"and in match \(re/__init__.py:\d+\), called from reward \(<string>:\d+\); stacks in", err)


def test_a_stall_ends_the_process_even_if_nothing_can_be_written(
    tmp_path: Path, python: Callable[..., Process]
) -> None:
    (tmp_path / "stalls").write_text("a file, where the folder should be")
    code, _, err = python(STALL, str(tmp_path), "1", "0").end()
    assert code == 70
    assert re.search("rank 0: update 7; no progress for [0-9]+ s; now in waits_for_a_friend", err)


def test_a_rank_reports_if_a_lower_one_reported_in_a_former_run_only(
    tmp_path: Path, python: Callable[..., Process]
) -> None:
    (tmp_path / "stalls").mkdir()
    (tmp_path / "stalls" / "rank-0.txt").write_text("update 3; of long ago\n")
    os.utime(tmp_path / "stalls" / "rank-0.txt", (time.time() - 60,) * 2)
    code, _, err = python(STALL, str(tmp_path), "1", "0", RANK="1", WORLD_SIZE="2").end()
    assert code == 70
    assert "rank 0: silent; rank 1: update 7; no progress for " in err


@pytest.mark.parametrize(("timeout", "beats"), [("2", "12"), ("0", "0")])
def test_progress_and_a_timeout_of_0_end_nothing(
    tmp_path: Path, python: Callable[..., Process], timeout: str, beats: str
) -> None:
    shorter = STALL.replace("acquire(timeout=30)", "acquire(timeout=4)")
    assert python(shorter, str(tmp_path), timeout, beats).end()[:2] == (0, "went on\n")
    assert list(tmp_path.iterdir()) == []
