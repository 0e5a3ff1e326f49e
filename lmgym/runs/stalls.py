"""Ends a run that makes no progress, with the stacks of every rank.

A rank that waits for its data blocks all others in their collectives, so all ranks stall together: each writes its
stacks to a file, and the lowest rank that can still report says where every rank is.
"""

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import final

from lmgym.distributed.ranks import rank, world_size
from lmgym.errors import STALLED

OTHERS_SECONDS = 5.0
CLOCKS_SECONDS = 2.0  # between this clock and that of the disk, which sets the times of files
OURS = str(Path(__file__).parents[2])
FOLDER = "stalls"


@final
class StallWatch:
    """Ends the process (exit 70) if, within `with`, no `heartbeat` comes for `timeout` seconds (0: never).

    The lowest rank that can still report calls `report` with a description. For the main thread.
    """

    def __init__(self, folder: Path, timeout: float, report: Callable[[str], None]) -> None:
        self._folder, self._timeout, self._report = folder / FOLDER, timeout, report
        self._main, self._started = threading.get_ident(), time.time()
        self._last_beat, self._doing, self._over = time.monotonic(), "starting", threading.Event()

    def heartbeat(self, doing: str) -> None:
        """Reports progress and the next activity."""
        self._last_beat, self._doing = time.monotonic(), doing

    def __enter__(self) -> "StallWatch":
        if self._timeout > 0:
            threading.Thread(target=self._watch, name="stall watch", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(min(1.0, self._timeout / 4)):
            if time.monotonic() - self._last_beat > self._timeout:
                self._end()
                return

    def _end(self) -> None:
        silent = time.monotonic() - self._last_beat
        frames = sys._current_frames()
        lines = [f"{self._doing}; no progress for {silent:.0f} s; now in {_place(frames[self._main])}\n"]
        for thread in threading.enumerate():
            if thread.ident in frames:
                lines += [f"\n{thread.name}:\n", *traceback.format_stack(frames[thread.ident])]
        with contextlib.suppress(OSError):  # a full disk must not keep the run from ending
            self._folder.mkdir(parents=True, exist_ok=True)
            self._path(rank()).write_text("".join(lines))
        if self._over.wait(OTHERS_SECONDS if world_size() > 1 else 0):
            return  # it made progress after all
        stacks = {number: self._read(number) for number in range(world_size())} | {rank(): "".join(lines)}
        try:
            if rank() == min(number for number, text in stacks.items() if text):
                places = [f"rank {n}: {text.splitlines()[0] if text else 'silent'}" for n, text in stacks.items()]
                self._report(
                    f"no progress for {silent:.0f} s (--stall_timeout {self._timeout:g}). {'; '.join(places)}; stacks "
                    f"in {self._folder}"
                )
            else:
                time.sleep(OTHERS_SECONDS)
        finally:
            os._exit(STALLED)

    def _path(self, number: int) -> Path:
        return self._folder / f"rank-{number}.txt"

    def _read(self, number: int) -> str:
        """The stacks of a rank; empty if there are none, or if they are of a former run."""
        with contextlib.suppress(OSError):
            path = self._path(number)
            return path.read_text() if path.stat().st_mtime > self._started - CLOCKS_SECONDS else ""
        return ""


def _place(frame: FrameType) -> str:
    """The innermost function, and the innermost line of our code that led to it."""
    inner = _describe(frame)
    caller: FrameType | None = frame
    while caller is not None:
        path = caller.f_code.co_filename
        if path.startswith(OURS) and "site-packages" not in path:
            return inner if caller is frame else f"{inner}, called from {_describe(caller)}"
        caller = caller.f_back
    return inner


def _describe(frame: FrameType) -> str:
    return f"{frame.f_code.co_name} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"
