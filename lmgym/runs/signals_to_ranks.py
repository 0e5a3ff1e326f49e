"""A launcher in a process below this one, which passes signals on to the ranks: they save and end, and it after them.

DeepSpeed's launcher of one machine dies of SIGTERM, and as the first process of a container does not even get it; its
launcher of each host, and torchrun, leave ranks 30 seconds for a checkpoint. `python -m lmgym.runs.signals_to_ranks
COMMAND...` imports no torch.
"""

import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

import psutil

from lmgym.runs.launchers import is_alive

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
PR_SET_PDEATHSIG = 1  # prctl(2)
POLL_SECONDS = 0.1
PREFIX = (sys.executable, "-m", __name__)
"""before the words of a launcher"""


def run_launcher(command: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
    """Runs a command, whose ranks get this process's signals and which dies with it; its exit code, as shells give it.

    A command without ranks gets the signals itself.
    """

    def begin() -> None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    process = subprocess.Popen([*command], env=environment, preexec_fn=begin)
    launcher = psutil.Process(process.pid)
    asked: set[psutil.Process] = set()  # ranks that got a signal

    def pass_on(number: int, frame: FrameType | None) -> None:
        asked.update(ranks_below(launcher))
        for one in (ranks := list(filter(is_alive, asked))):
            with suppress(psutil.Error):
                one.send_signal(number)
        if not ranks:
            process.send_signal(number)

    with signals_to(pass_on):
        code = process.wait()
        while any(map(is_alive, list(asked))):  # Ctrl-C ends DeepSpeed's launcher before them
            time.sleep(POLL_SECONDS)
    return code if code >= 0 else 128 - code


@contextmanager
def signals_to(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Context manager in which signals that ask to stop reach a handler; those that are ignored stay so."""
    heard = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]  # not nohup's SIGHUP
    former = {number: signal.signal(number, handler) for number in heard}
    try:
        yield
    finally:
        for number, earlier in former.items():
            signal.signal(number, earlier)


def ranks_below(process: psutil.Process) -> list[psutil.Process]:
    """The processes below a launcher that have a LOCAL_RANK while their parents have none."""
    with suppress(psutil.Error):
        return [rank for one in process.children() for rank in ([one] if _is_rank(one) else ranks_below(one))]
    return []


def _is_rank(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return "LOCAL_RANK" in process.environ()
    return False


if __name__ == "__main__":
    sys.exit(run_launcher(sys.argv[1:]))
