"""One run a folder: a lock that the operating system holds, and lets go of when its process dies, however it dies.

The file `.lock` stays behind and says nothing by being there; it tells a second run who holds the lock.
"""

import fcntl
import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import TextIO, final

from lmgym.errors import FOLDER_IN_USE, InputError, RunStopped, shown_path
from lmgym.runs.record import timestamp

NAME = ".lock"


@final
class FolderLock:
    """A folder held by this process until `release`, or its end."""

    def __init__(self, folder: str | Path) -> None:
        """Takes the lock. Raises RunStopped (exit 73) where another process has it, InputError where none can be."""
        path = Path(folder) / NAME
        holder = {"host": socket.gethostname(), "pid": os.getpid(), "started": timestamp()}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("a+", encoding="utf-8")
            _lock(file, path.parent)
            file.truncate(0)
            file.write(json.dumps(holder) + "\n")
            file.flush()
        except OSError as error:
            cause = error.strerror or error
            raise InputError(
                f"cannot write a run to {shown_path(folder)}: {cause}; free space, or name another folder"
            ) from error
        self._file: TextIO | None = file
        # a forked worker that outlives this process would hold the lock on
        os.register_at_fork(after_in_child=file.close)

    def release(self) -> None:
        """Lets go; another run may have the folder."""
        if self._file:
            self._file.close()
            self._file = None


def refuse_if_held(folder: str | Path) -> None:
    """Raises RunStopped (exit 73) where another run holds the folder now; writes nothing."""
    path = Path(folder) / NAME
    if os.path.isfile(path):
        with path.open(encoding="utf-8") as file:
            _lock(file, path.parent, fcntl.LOCK_SH)


def is_free(folder: str | Path) -> bool:
    """Whether no process holds the folder."""
    try:
        refuse_if_held(folder)
    except RunStopped:
        return False
    return True


def _lock(file: TextIO, folder: Path, kind: int = fcntl.LOCK_EX) -> None:
    for _ in range(4):  # another may only have looked
        with suppress(OSError):
            return fcntl.flock(file, kind | fcntl.LOCK_NB)
        time.sleep(0.05)
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError as error:
        file.seek(0)
        said = file.read()
        file.close()
        try:
            holder = "host {host}, process {pid}, since {started}".format(**json.loads(said))
        except (ValueError, KeyError):
            holder = "a process that has not said which yet"
        raise RunStopped(
            f"{folder} is in use by another run ({holder}); wait for it, stop it, or name another --output",
            "refused",
            FOLDER_IN_USE,
        ) from error
