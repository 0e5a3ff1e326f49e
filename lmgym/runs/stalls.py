"""Ends a run that makes no progress, with the stacks of every rank, whatever holds the interpreter.

Design decisions:
- Code that holds the interpreter's lock, such as a regular expression without end, blocks every thread of Python. So
  the stacks are written by `faulthandler`, and the process is ended by a timer of the operating system, neither of
  which needs the lock; and another process reports (stall_report.py).
- A rank that waits for its data blocks all others in their collectives, so all ranks stall together: once one has, the
  reporter of each writes its stacks to a file, and that of the lowest rank says where every rank is. Ranks that can
  then end at once, before the others' connections break.
"""

import ctypes
import faulthandler
import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, final

from lmgym.distributed.ranks import rank, world_size
from lmgym.errors import STALLED
from lmgym.runs.process_state import end_process
from lmgym.runs.stall_report import ASKS

OURS = Path(__file__).parents[2]
OTHERS_SECONDS = 5.0  # from this rank's stall to the report, in which the other ranks' stalls are written
EXIT_SECONDS = 5.0  # from the report to the end of a process that something holds, at one rank


@final
class StallWatch:
    """Ends the process (exit 70) if, within `with`, no `heartbeat` comes for `timeout` seconds (0: never).

    Before that, a line on stderr and run.json says where the ranks are. For the main thread.
    """

    def __init__(self, folder: Path, timeout: float) -> None:
        self._folder, self._timeout = folder, timeout
        self._until_report = OTHERS_SECONDS if world_size() > 1 else 0.0
        self._reporter: subprocess.Popen | None = None

    def heartbeat(self, doing: str) -> None:
        """Reports progress and the next activity."""
        if not self._reporter:
            return
        self._exit.set(self._timeout + 2 * self._until_report + EXIT_SECONDS)
        # first: once it is set again, no former stack is still being written
        faulthandler.dump_traceback_later(self._timeout, file=self._dump)
        os.ftruncate(self._dump, 0)
        os.write(self._dump, f"{time.monotonic()} {threading.main_thread().ident} {' '.join(doing.split())}\n".encode())

    def __enter__(self) -> "StallWatch":
        if self._timeout > 0:
            self._exit = _ExitTimer(STALLED)
            self._dump = os.memfd_create("stall")  # in memory: a full disk does not keep the run from ending
            fcntl.fcntl(self._dump, fcntl.F_SETFL, os.O_APPEND)
            faulthandler.register(ASKS, self._dump)
            given = self._dump, self._folder, self._timeout, self._until_report, rank(), world_size()
            self._reporter = subprocess.Popen(
                [sys.executable, "-P", "-m", "lmgym.runs.stall_report", *map(str, given)],  # -P: not the user's modules
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(OURS), os.getenv("PYTHONPATH")]))},
                pass_fds=[self._dump],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for the run alone
            )
            self.heartbeat("starting")
            threading.Thread(target=_exit_after, args=(self._reporter.stdout,), name="stalls", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._reporter:
            faulthandler.cancel_dump_traceback_later()
            self._exit.set(0)
            self._reporter.kill()
            self._reporter.wait()
            self._reporter = None
            faulthandler.unregister(ASKS)
            os.close(self._dump)


def _exit_after(report: IO[bytes]) -> None:
    """Ends the process once its stall is reported, unless something holds the interpreter."""
    if report.read():
        end_process(STALLED)


class _SignalEvent(ctypes.Structure):
    """glibc's struct sigevent."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("number", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("padding", ctypes.c_char * 32),
    )


class _TimerSpec(ctypes.Structure):
    """glibc's struct itimerspec."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("every", "every_nano", "seconds", "nanoseconds"))


@final
class _ExitTimer:
    """A timer of the operating system that ends the process with an exit code, without a handler in Python."""

    THREAD = 2  # SIGEV_THREAD: the C library calls the function in a thread of its own

    def __init__(self, exit_code: int) -> None:
        self._libc, self._timer = ctypes.CDLL(None, use_errno=True), ctypes.c_void_p()
        leave = ctypes.cast(self._libc._exit, ctypes.c_void_p)
        event = _SignalEvent(value=exit_code, notify=self.THREAD, function=leave)
        self._call("timer_create", time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer))

    def set(self, seconds: float) -> None:
        """Ends the process after so many seconds unless it is called again; 0: never."""
        spec = _TimerSpec(seconds=int(seconds), nanoseconds=int(seconds % 1 * 1e9))
        self._call("timer_settime", self._timer, 0, ctypes.byref(spec), None)

    def _call(self, name: str, *arguments: object) -> None:
        if getattr(self._libc, name)(*arguments):
            raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
