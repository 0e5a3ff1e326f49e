"""One run per folder: a lock of the operating system, which is released when its process dies for any reason.

The lock is not the existence of the file `.lock`, which stays; its content tells a second run who holds the lock.
"""

import fcntl
import json
import os
import socket
import time
from pathlib import Path
from typing import TextIO, final

from lmgym.errors import FOLDER_IN_USE, InputError, RunStopped, shown_path
from lmgym.runs.record import timestamp

NAME = ".lock"
ATTEMPTS, WAIT_SECONDS = 5, 0.05  # `refuse_if_held` of another process holds the lock for a moment


@final
class FolderLock:
    """A folder that this process holds until `release` or its end."""

    def __init__(self, folder: str | Path) -> None:
        """Takes the lock. Raises RunStopped (exit 73) if another process holds it, InputError if it cannot be taken."""
        path = Path(folder) / NAME
        holder = {"host": socket.gethostname(), "pid": os.getpid(), "started": timestamp()}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("a+", encoding="utf-8")
            _lock(file, path.parent, fcntl.LOCK_EX)
            file.truncate(0)
            file.write(json.dumps(holder) + "\n")
            file.flush()
        except OSError as error:
            raise cannot_write(folder, error) from error
        self._file: TextIO | None = file
        # a forked worker that outlives this process would keep the lock
        os.register_at_fork(after_in_child=file.close)

    def release(self) -> None:
        """Releases the lock, so that another run can use the folder."""
        if self._file:
            self._file.close()
            self._file = None


def cannot_write(folder: str | Path, error: OSError) -> InputError:
    """The InputError for a folder that a run cannot write to."""
    cause = error.strerror or error
    return InputError(f"cannot write a run to {shown_path(folder)}: {cause}; free space, or name another folder")


def refuse_if_held(folder: str | Path) -> None:
    """Raises RunStopped (exit 73) if another run holds the folder now; writes nothing."""
    path = Path(folder) / NAME
    if os.path.isfile(path):
        with path.open(encoding="utf-8") as file:
            _lock(file, path.parent, fcntl.LOCK_SH)


def is_free(folder: str | Path) -> bool:
    """True if no process holds the folder."""
    try:
        refuse_if_held(folder)
    except RunStopped:
        return False
    return True


def _lock(file: TextIO, folder: Path, kind: int) -> None:
    for attempt in range(ATTEMPTS):
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            return
        except OSError as error:
            if attempt == ATTEMPTS - 1:
                raise _in_use(file, folder) from error
            time.sleep(WAIT_SECONDS)


def _in_use(file: TextIO, folder: Path) -> RunStopped:
    file.seek(0)
    content = file.read()
    file.close()
    try:
        holder = "host {host}, process {pid}, since {started}".format(**json.loads(content))
    except (ValueError, KeyError):
        holder = "an unknown process"
    return RunStopped(
        f"{folder} is in use by another run ({holder}); wait for it, stop it, or name another --output",
        "refused",
        FOLDER_IN_USE,
    )
