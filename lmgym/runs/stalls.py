"""No silent hang: a rank that makes no progress says where it stands, and ends the run.

One rank that waits for its data holds up all others in their collectives, so all fall silent together: each writes the
stacks of its threads to a file, and the first rank that is left names where everyone is.
"""

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import final

from lmgym.distributed.ranks import rank, world_size
from lmgym.errors import STALLED

OTHERS_SECONDS = 5.0
CLOCKS_SECONDS = 2.0  # a file's time is that of the disk's clock
OURS = str(Path(__file__).parents[2])
FOLDER = "stalls"


@final
class StallWatch:
    """Watches from `with` to its end; `heartbeat` is progress. After `timeout` seconds without (0: never) the process
    ends.

    `leave` is told what is known, on the lowest rank that can still speak. For the main thread.
    """

    def __init__(self, folder: Path, timeout: float, leave: Callable[[str], None]) -> None:
        self._folder, self._timeout, self._leave = folder / FOLDER, timeout, leave
        self._main, self._born = threading.get_ident(), time.time()
        self._beaten, self._doing, self._over = time.monotonic(), "starting", threading.Event()

    def heartbeat(self, doing: str) -> None:
        """Something was done, and this comes next."""
        self._beaten, self._doing = time.monotonic(), doing

    def __enter__(self) -> "StallWatch":
        if self._timeout > 0:
            threading.Thread(target=self._watch, name="stall watch", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(min(1.0, self._timeout / 4)):
            if time.monotonic() - self._beaten > self._timeout:
                self._end()
                return

    def _end(self) -> None:
        silent = time.monotonic() - self._beaten
        frames = sys._current_frames()
        where = _place(frames[self._main])
        lines = [f"{self._doing}; no progress for {silent:.0f} s; now in {where}\n"]
        for thread in threading.enumerate():
            if thread.ident in frames:
                lines += [f"\n{thread.name}:\n", *traceback.format_stack(frames[thread.ident])]
        with contextlib.suppress(OSError):  # a full disk does not keep the run from ending
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file(rank()).write_text("".join(lines))
        if self._over.wait(OTHERS_SECONDS if world_size() > 1 else 0):
            return  # it went on after all
        said = {r: words for r in range(world_size()) if (words := self._read(r))} | {rank(): "".join(lines)}
        try:
            self._tell(silent, said)
        finally:
            os._exit(STALLED)

    def _tell(self, silent: float, said: dict[int, str]) -> None:
        if rank() == min(said):
            each = [
                f"rank {r}: {said[r].splitlines()[0]}" if r in said else f"rank {r}: silent"
                for r in range(world_size())
            ]
            self._leave(
                f"no progress for {silent:.0f} s (--stall_timeout {self._timeout:g}). "
                + "; ".join(each)
                + f"; stacks in {self._folder}"
            )
        else:
            time.sleep(OTHERS_SECONDS)

    def _file(self, of_rank: int) -> Path:
        return self._folder / f"rank-{of_rank}.txt"

    def _read(self, of_rank: int) -> str:
        """What a rank has written; nothing where that is of a former run in this folder."""
        with contextlib.suppress(OSError):
            path = self._file(of_rank)
            return path.read_text() if path.stat().st_mtime > self._born - CLOCKS_SECONDS else ""
        return ""


def _place(frame: FrameType | None) -> str:
    """The innermost function, and the innermost line of ours above it."""
    assert frame is not None
    inner = f"{frame.f_code.co_name} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(OURS) and "site-packages" not in path:
            ours = f"{frame.f_code.co_name} ({Path(path).name}:{frame.f_lineno})"
            return inner if ours == inner else f"{inner}, called from {ours}"
        frame = frame.f_back
    return inner
