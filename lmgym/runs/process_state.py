"""The state of the process that code of users may change: kept around every call of it.

All of it belongs to the process and not to the call: what one function leaves behind would change the next one, the
training, or the folder that the run writes to. Nor may such code end the process: a run would seem to have ended well.
"""

import _signal  # what signal is made of: 20 times as fast
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

STREAMS = {"stdout": 1, "stderr": 2}
SLACK = 0.01  # seconds between two readings of one timer
SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


end_process = os._exit
"""ends this process at once, also where `exits_raise` holds"""
_scopes = 0
_scopes_lock = threading.Lock()


@contextmanager
def exits_raise() -> Iterator[None]:
    """Within it os._exit raises SystemExit, as sys.exit does, in all threads; forks, as of multiprocessing, do end."""
    global _scopes
    with _scopes_lock:  # threads may leave in another order than they came
        _scopes += 1
        if _scopes == 1:  # a fork within a scope keeps that of its parent, which lets it end
            os._exit = _raising(os.getpid())
    try:
        yield
    finally:
        with _scopes_lock:
            _scopes -= 1
            if _scopes == 0:
                os._exit = end_process


def _raising(process: int) -> Any:
    """os._exit for this process; its forks do end."""

    def raise_exit(code: int) -> None:
        if os.getpid() != process:
            end_process(code)
        raise SystemExit(code)

    return raise_exit


@contextmanager
def process_state_kept() -> Iterator[None]:
    """Restores the working folder, torch's default dtype, device and gradient mode, stdout and stderr, handlers of
    signals and the timer after a call, within which `exits_raise` holds.
    """
    folder = _folder()
    streams = {name: getattr(sys, name) for name in STREAMS}
    copies = {name: _copy(number) for name, number in STREAMS.items()}
    handlers, due, modes = _handlers(), _due(), _torch_modes()
    try:
        with exits_raise():
            yield
    finally:
        _restore_signals(handlers, due)
        if folder and _folder() != folder:
            os.chdir(folder)
        _restore_torch(modes)
        for name, stream in streams.items():
            _restore(name, stream, copies[name])


def _torch_modes() -> tuple[Any, bool, Any] | None:
    """torch's default dtype, gradient mode and device; None before it is imported, as games between scripts do."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    return torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_default_device()


def _restore_torch(modes: tuple[Any, bool, Any] | None) -> None:
    torch = sys.modules.get("torch")
    if torch is None:
        return
    dtype, gradients, device = modes or (torch.float32, True, torch.device("cpu"))
    torch.set_default_dtype(dtype)
    torch.set_grad_enabled(gradients)
    if torch.get_default_device() != device:
        torch.set_default_device(device)


def _handlers() -> dict[int, Any]:
    """Handlers of all signals; none outside the main thread, which alone can change them."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: _signal.getsignal(number) for number in SIGNALS}


def _due() -> float:
    """The time at which the timer ends, on the monotonic clock; 0 without one."""
    left = signal.getitimer(signal.ITIMER_REAL)[0]
    return time.monotonic() + left if left else 0.0


def _restore_signals(handlers: dict[int, Any], due: float) -> None:
    if not handlers:
        return
    if abs(_due() - due) > SLACK:
        signal.setitimer(signal.ITIMER_REAL, max(due - time.monotonic(), 1e-3) if due else 0)
    for number, handler in handlers.items():
        if handler is not None and _signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def _folder() -> str:
    """The working folder; empty if it was removed."""
    with suppress(OSError):
        return os.getcwd()
    return ""


def _copy(number: int) -> int | None:
    """A further descriptor of an open file; None of one that is closed."""
    with suppress(OSError):
        return os.dup(number)
    return None


def _restore(name: str, stream: TextIO, copy: int | None) -> None:
    """Makes the stream what it was, on the file that it wrote to."""
    number = STREAMS[name]
    if copy is not None:
        if not _is_open_as(number, copy):
            os.dup2(copy, number)
        os.close(copy)
    if stream is not None and stream.closed:
        stream = io.TextIOWrapper(io.FileIO(number, "w", closefd=False), stream.encoding, stream.errors or "replace")
    if getattr(sys, name) is not stream:
        setattr(sys, name, stream)


def _is_open_as(number: int, copy: int) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.fstat(number), os.fstat(copy))
    return False
