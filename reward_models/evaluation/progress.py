"""A line that says how far a reply is, and that it goes on where nobody tells: a server may be silent for a minute."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO

QUIET_SECONDS, STEP_SECONDS, TICK_SECONDS = 0.5, 0.1, 1.0
"""until the line appears, between two changes of it, and until it changes though nothing was told"""


@contextlib.contextmanager
def progress_on(file: IO[str]) -> "Iterator[ProgressLine | None]":
    """Shows there what it is told while it lasts; None where `file` is no terminal."""
    if not file.isatty():
        yield None
        return
    line, over = ProgressLine(file), threading.Event()

    def tick() -> None:
        while not over.wait(TICK_SECONDS):
            line.show()

    clock = threading.Thread(target=tick, name="progress", daemon=True)
    clock.start()
    try:
        yield line
    finally:
        over.set()
        clock.join()
        line.close()


class ProgressLine:
    """`12 of at most 64, 3 s` in a line that is written over; tokens or replies, as the generator counts."""

    def __init__(self, file: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.file, self.clock = file, clock
        self.began = clock()
        self.next, self.width, self.made = self.began + QUIET_SECONDS, 0, ""
        self.lock = threading.Lock()

    def __call__(self, done: int, of: int) -> None:
        self.made = f"{done} of at most {of}, "
        self.show()

    def show(self) -> None:
        """Writes the line, unless it was written just now."""
        with self.lock:
            now = self.clock()
            if now < self.next:
                return
            self.next = now + STEP_SECONDS
            words = f"{self.made}{now - self.began:.0f} s; Ctrl-C stops it"
            self.file.write(f"\r{words:{self.width}}")
            self.file.flush()
            self.width = max(self.width, len(words))

    def close(self) -> None:
        """Takes the line away."""
        if self.width:
            self.file.write(f"\r{' ' * self.width}\r")
            self.file.flush()
