"""Requests to stop: SIGTERM, Ctrl-C, SIGUSR1 and SIGUSR2, a dead launcher. A run stops after the current update.

Design decisions:
- A thread reads signals from a pipe, because a main thread that waits in a collective runs no Python handler.
- Launchers forward signals that a terminal has already sent to the whole group: signals within two seconds of the first
  are the same request. A later one stops at once; checkpoints are complete at any moment.
- After a request, signals are handled until the process ends: otherwise one that arrives while the run closes its files
  or the interpreter exits would end the process by the signal, and its exit code would be lost.
- Slurm sends SIGUSR1 or SIGUSR2 before a job's time ends (`--signal`), whose default action ends a process at once.
- The launchers above a worker are watched: without them it would continue unseen and hold its GPU.
"""

import atexit
import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import final

from lmgym.console import say
from lmgym.distributed.ranks import rank
from lmgym.errors import INTERRUPTED, outcome_of
from lmgym.runs.launch import ends_process
from lmgym.runs.launchers import is_alive, launchers
from lmgym.runs.process_state import end_process

SAME_REQUEST_SECONDS = 2.0
POLL_SECONDS = 1.0
RECORD_SECONDS = 2.0  # closing a tracker may take minutes: a second request does not wait for it
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


@final
class Interrupts:
    """Records requests to stop within `with`; `reason` is the first one. For the main thread.

    A second request ends the process with `exit_code` if the run is already stopping, or else with 75, after calling
    `record` in another thread. In a launched run that was asked to stop, this holds until the process ends.
    """

    def __init__(self, record: Callable[[str], None]) -> None:
        self.reason = ""
        self.exit_code: int | None = None
        """the exit code of a run that has recorded its outcome and is stopping"""
        self._record, self._since = record, 0.0
        self._launchers = launchers()
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._former: dict[int, object] = {}

    def __enter__(self) -> "Interrupts":
        for number in SIGNALS:
            # the thread reads the signal from the pipe, but without a handler the signal would kill the process
            self._former[number] = signal.signal(number, lambda number, frame: None)
        self._former_pipe = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._watch, name="interrupts", daemon=True).start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self.reason and ends_process():
            if self.exit_code is None:
                _, self.exit_code = outcome_of(error)
            # the interpreter removes handlers at its very end, and the default action would replace them
            atexit.register(lambda: [signal.signal(number, signal.SIG_IGN) for number in SIGNALS])
            return
        signal.set_wakeup_fd(self._former_pipe)
        for number, handler in self._former.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._writer.close()

    def _watch(self) -> None:
        self._reader.settimeout(POLL_SECONDS)
        while True:
            try:
                numbers = self._reader.recv(64)
            except TimeoutError:
                dead = [one.pid for one in self._launchers if not is_alive(one)]
                if dead and not self.reason:
                    self._request(f"the launcher (process {dead[0]}) is dead")
                continue
            except OSError:
                return
            if not numbers:
                return
            for number in numbers:
                if number in SIGNALS:
                    self._request(signal.Signals(number).name)

    def _request(self, reason: str) -> None:
        now = time.monotonic()
        if not self.reason:
            self.reason, self._since = reason, now
            if rank() == 0 and self.exit_code is None:
                text = f"{reason}: stopping after this update and a checkpoint; a second signal stops at once"
                with contextlib.suppress(OSError, ValueError):  # a closed terminal does not end the watch
                    say(text, error=True)
        elif now - self._since > SAME_REQUEST_SECONDS:
            if self.exit_code is None:
                self.exit_code = INTERRUPTED
                recorder = threading.Thread(target=self._record, args=(f"{reason}, the second request",), daemon=True)
                recorder.start()
                recorder.join(RECORD_SECONDS)
            end_process(self.exit_code)
