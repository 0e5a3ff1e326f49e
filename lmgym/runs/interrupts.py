"""Requests to leave: SIGTERM, Ctrl-C, a launcher that is gone. The first one is met after the update at hand.

Design decisions:
- Signals are read off a pipe by a thread: a main thread that waits in a collective runs no Python handler.
- Launchers pass on what a terminal has sent to the whole group already: what comes within two seconds of the first is
  the same request. After that a second one leaves at once; checkpoints are whole at any moment.
- Once a request was heard, signals are listened to until the process ends: one that arrives while the run closes its
  files or the interpreter exits would else end the process by the signal, and lose the exit code.
- A worker whose launcher died would go on unseen and hold its GPU: the launchers above it are watched.
"""

import atexit
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import final

from lmgym.console import say
from lmgym.distributed.ranks import rank
from lmgym.errors import INTERRUPTED, outcome_of
from lmgym.runs.launch import ends_process

SAME_REQUEST_SECONDS = 2.0
LOOK_SECONDS = 1.0
LEAVE_SECONDS = 2.0  # a tracker that is closed may take minutes: a second request does not wait for it
SIGNALS = (signal.SIGTERM, signal.SIGINT)
LAUNCHERS = {"deepspeed", "deepspeed.launcher.launch", "torchrun", "torch.distributed.run", "accelerate"}


@final
class Interrupts:
    """Watches from `with` to its end, and a launched run that was asked to leave to the process's; `reason` says why.

    A second request ends the process: with exit code 75, after `leave` was called from another thread, or with the
    code with which the run is already `leaving`. For the main thread.
    """

    def __init__(self, leave: Callable[[str], None]) -> None:
        self.reason = ""
        self.leaving: int | None = None
        """the exit code of a run that has said how it ended, and is on its way out"""
        self._leave, self._since = leave, 0.0
        self._launchers = launchers()
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._former: dict[int, object] = {}

    def __enter__(self) -> "Interrupts":
        for number in SIGNALS:
            self._former[number] = signal.signal(number, _noted)
        self._former_pipe = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._watch, name="interrupts", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.reason and ends_process():
            if self.leaving is None:
                _, self.leaving = outcome_of(error)
            # last of all the interpreter gives up its handlers, and the default action would take their place
            atexit.register(_ignore)
            return
        signal.set_wakeup_fd(self._former_pipe)
        for number, handler in self._former.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._writer.close()

    def _watch(self) -> None:
        self._reader.settimeout(LOOK_SECONDS)
        while True:
            try:
                numbers = self._reader.recv(64)
            except TimeoutError:
                gone = [pid for pid, started in self._launchers if not _alive(pid, started)]
                if gone and not self.reason:
                    self._ask(f"the launcher (process {gone[0]}) is gone")
                continue
            except OSError:
                return
            if not numbers:
                return
            for number in numbers:
                if number in SIGNALS:
                    self._ask(signal.Signals(number).name)

    def _ask(self, reason: str) -> None:
        now = time.monotonic()
        if not self.reason:
            self.reason, self._since = reason, now
            if rank() == 0 and self.leaving is None:
                _say(f"{reason}: saving a checkpoint after this update, then leaving; a second signal leaves at once")
        elif now - self._since > SAME_REQUEST_SECONDS:
            if self.leaving is None:
                self.leaving = INTERRUPTED
                last = threading.Thread(target=self._leave, args=(f"{reason}, the second request",), daemon=True)
                last.start()
                last.join(LEAVE_SECONDS)
            os._exit(self.leaving)


def _noted(number: int, frame: FrameType | None) -> None:
    """The thread has it from the pipe; a handler must be there, or the signal would kill."""


def _ignore() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def launchers() -> list[tuple[int, str]]:
    """The launchers above this process, nearest first: process ids, each with when it started (an id may be reused)."""
    found: list[tuple[int, str]] = []
    if "LOCAL_RANK" not in os.environ:
        return found
    pid = os.getppid()
    while pid > 1 and (fields := _fields(pid)):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:4]
            # a word with spaces is a script that a shell was given
            if not LAUNCHERS.intersection(Path(word).name for word in words if len(word.split()) == 1):
                break
        found.append((pid, fields[19]))
        pid = int(fields[1])
    return found


def _alive(pid: int, started: str) -> bool:
    fields = _fields(pid)
    return bool(fields) and fields[0] not in "ZX" and fields[19] == started


def _fields(pid: int) -> list[str]:
    """What Linux says of a process from its state on (proc(5)); empty where it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def _say(words: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # a terminal that is gone does not end the watch
        say(words, error=True)
