"""The process beside each rank that reports a stall; the rank itself may not be able to (stalls.py).

It reads what `faulthandler` wrote: the threads' stacks, the innermost frame first. Nothing heavy is imported.
"""

import contextlib
import linecache
import os
import re
import signal
import sys
import sysconfig
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import final

from lmgym.aids import aid
from lmgym.errors import STALLED
from lmgym.runs.files import read_object, write_json, write_text
from lmgym.runs.record import timestamp

FOLDER = "stalls"
ASKS = signal.SIGRTMIN + 7
"""the reporter's signal to its rank, whose stacks `faulthandler` then writes without the interpreter"""
CLOCKS_SECONDS = 2.0  # between this clock and that of the disk, which sets the times of files
WRITING_SECONDS = 0.2  # that `faulthandler` may need
MOST_BYTES = 1 << 20
LIBRARY = Path(__file__).parents[1]
LIBRARIES = (*(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")), "<frozen")
THREAD = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]+).*\(most recent call first\):")
FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')


@dataclass(frozen=True)
class Frame:
    """A line of a stack."""

    path: str
    line: int
    function: str

    @property
    def is_of_libraries(self) -> bool:
        """True for Python's own modules and installed packages other than this one."""
        is_ours = Path(self.path).is_relative_to(LIBRARY)
        return not is_ours and (self.path.startswith(LIBRARIES) or "-packages" in self.path)

    def __str__(self) -> str:
        path = Path(self.path)
        name = f"{path.parent.name}/{path.name}" if path.name == "__init__.py" else path.name
        return f"{self.function} ({name}:{self.line})"


@final
class Reporter:
    """Reports the stall of rank `rank` of `ranks`, its parent, whose file descriptor `dump` has its last heartbeat and,
    once it stalls, its stacks. A line on stdout asks the parent to end.
    """

    def __init__(self, dump: int, folder: Path, timeout: float, until_report: float, rank: int, ranks: int) -> None:
        self.dump, self.folder, self.timeout, self.until_report = dump, folder, timeout, until_report
        self.rank, self.ranks, self.started, self.record = rank, ranks, time.time(), folder / "run.json"

    def watch(self) -> None:
        """Waits for a stall, reports it and returns; or returns once the parent has ended."""
        parent = os.getppid()
        while os.getppid() == parent:
            time.sleep(min(1.0, self.timeout / 4))
            heartbeat, stacks = self.read()
            if not stacks and self.others_have_stalled():
                os.kill(parent, ASKS)
                stacks = "asked for"
            if stacks:
                time.sleep(WRITING_SECONDS)
                heartbeat, stacks = self.read()
                if stacks and self.report(heartbeat, describe(heartbeat, stacks)):
                    os.write(1, b"reported\n")
                    os.close(1)
                    self.write_page()
                    return

    def read(self) -> tuple[str, str]:
        """The last heartbeat, and the stacks if the rank has stalled."""
        heartbeat, _, stacks = os.pread(self.dump, MOST_BYTES, 0).decode(errors="replace").partition("\n")
        return heartbeat, stacks

    def report(self, heartbeat: str, own: str) -> bool:
        """Writes the rank's stacks, and says where every rank is; False if it made progress after all."""
        path, rank = self.folder / FOLDER / f"rank-{self.rank}.txt", self.rank
        with contextlib.suppress(OSError):  # a full disk
            path.parent.mkdir(exist_ok=True)
            path.write_text(own, encoding="utf-8")
        time.sleep(self.until_report)
        if self.read()[0] != heartbeat:
            with contextlib.suppress(OSError):
                path.unlink()
            return False
        texts = {number: self.of_rank(number) for number in range(self.ranks)} | {rank: own}
        if rank == min(number for number, text in texts.items() if text):
            places = [f"rank {n}: {text.splitlines()[0] if text else 'silent'}" for n, text in texts.items()]
            silent = time.monotonic() - float(heartbeat.split()[0]) - self.until_report
            self.say(
                f"no progress for {silent:.0f} s (--stall_timeout {self.timeout:g}). {'; '.join(places)}; stacks in "
                f"{self.folder / FOLDER}"
            )
        else:
            self.wait_for_report()
        return True

    def wait_for_report(self) -> None:
        """Waits until the lowest rank has reported, and ended: others that end first break its connections."""
        until = time.monotonic() + self.until_report
        while time.monotonic() < until and read_object(self.record).get("outcome", "running") == "running":
            time.sleep(WRITING_SECONDS)
        time.sleep(WRITING_SECONDS)

    def others_have_stalled(self) -> bool:
        """True if another rank has written its stacks."""
        return self.ranks > 1 and (self.folder / FOLDER).is_dir() and any(map(self.of_rank, range(self.ranks)))

    def of_rank(self, number: int) -> str:
        """The stacks of a rank; empty if there are none, or if they are of a former run."""
        with contextlib.suppress(OSError):
            path = self.folder / FOLDER / f"rank-{number}.txt"
            is_new = path.stat().st_mtime > self.started - CLOCKS_SECONDS
            return path.read_text(encoding="utf-8") if is_new else ""
        return ""

    def say(self, why: str) -> None:
        """Prints the reason, and records the outcome in run.json; nothing if the run has an outcome already."""
        from lmgym.console import say  # here: only a report needs it

        record = read_object(self.record)
        if record.get("outcome", "running") != "running":
            return
        with contextlib.suppress(OSError):
            say(error=True)  # the status line may occupy the line
            say(f"error: {why}", error=True)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            ended = timestamp()
            seconds = (datetime.fromisoformat(ended) - datetime.fromisoformat(record["started"])).total_seconds()
            outcome = {"outcome": "stalled", "exit_code": STALLED, "error": f"RunStopped: {why}", "ended": ended}
            # last: the other ranks end then, and with them their connections
            write_json(self.record, record | outcome | {"seconds": seconds})

    @aid("writing report.html after a stall")
    def write_page(self) -> None:
        """Writes report.html, a view of the files, anew."""
        from lmgym.report.page import REPORT, report_page

        if read_object(self.record):
            write_text(self.folder / REPORT, report_page(self.folder))


def describe(heartbeat: str, dump: str) -> str:
    """The place of a rank, in a line, and below it the stacks of all its threads, the innermost frame last."""
    beat, main, doing = heartbeat.split(" ", 2)
    threads = _threads(dump)
    own = threads.pop(int(main), [])
    others = [f"and in {_place(frames)}" for frames in threads.values() if _is_users(frames)]
    silent = time.monotonic() - float(beat)
    lines = [f"{doing}; no progress for {silent:.0f} s; {' '.join([f'now in {_place(own)}', *others])}\n"]
    for name, frames in {"MainThread": own, **{f"Thread {ident:#x}": f for ident, f in threads.items()}}.items():
        lines.append(f"\n{name}:\n")
        for frame in reversed(frames):
            lines.append(f'  File "{frame.path}", line {frame.line}, in {frame.function}\n')
            if source := linecache.getline(frame.path, frame.line).strip():
                lines.append(f"    {source}\n")
    return "".join(lines)


def _threads(dump: str) -> dict[int, list[Frame]]:
    """The stacks by thread, the innermost frame first."""
    threads: dict[int, list[Frame]] = {}
    frames: list[Frame] = []
    for line in dump.splitlines():
        if found := THREAD.match(line):
            frames = threads.setdefault(int(found[1], 16), [])
        elif found := FRAME.match(line):
            frames.append(Frame(found[1], int(found[2]), found[3]))
    return threads


def _is_users(frames: list[Frame]) -> bool:
    """True for a thread that runs code of neither a library nor this one, such as a reward function."""
    inner = next((frame for frame in frames if not frame.is_of_libraries), None)
    return inner is not None and not Path(inner.path).is_relative_to(LIBRARY)


def _place(frames: list[Frame]) -> str:
    """The innermost function, and the innermost line outside Python's and others' modules that led to it."""
    if not frames:
        return "code without a stack of Python"
    caller = next((frame for frame in frames if not frame.is_of_libraries), frames[0])
    return str(frames[0]) if caller is frames[0] else f"{frames[0]}, called from {caller}"


if __name__ == "__main__":
    given_dump, given_folder, *numbers = sys.argv[1:]
    seconds, until, own_rank, count = map(float, numbers)
    Reporter(int(given_dump), Path(given_folder), seconds, until, int(own_rank), int(count)).watch()
