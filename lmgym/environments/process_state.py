"""The state of the process that code of users may change: kept around every call of an environment or a reward.

All of it belongs to the process and not to the call: what one function leaves behind would change the next one, the
training, or the folder that the run writes to.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

STREAMS = {"stdout": 1, "stderr": 2}


@contextmanager
def process_state_kept() -> Iterator[None]:
    """Restores the working folder, torch's default dtype, device and gradient mode, stdout and stderr after a call."""
    folder = _folder()
    streams = {name: getattr(sys, name) for name in STREAMS}
    copies = {name: _copy(number) for name, number in STREAMS.items()}
    torch = sys.modules.get("torch")  # games between scripts are played without it
    if torch is not None:
        dtype, gradients, device = torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_default_device()
    try:
        yield
    finally:
        if folder and _folder() != folder:
            os.chdir(folder)
        if torch is not None:
            torch.set_default_dtype(dtype)
            torch.set_grad_enabled(gradients)
            if torch.get_default_device() != device:
                torch.set_default_device(device)
        for name, stream in streams.items():
            _restore(name, stream, copies[name])


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
