"""`--push_to_hub`: pushes while a run trains, on a thread of the main rank, so that training waits for no network.

The texts of a model's folder are read when it is saved, and its weights get a second name (a hard link) in `.pushing`,
so that a better model may replace the folder during the push. A push that fails leaves a line and never the run.
"""

import os
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from lmgym.config import SharingConfig
from lmgym.console import say
from lmgym.runs import publishing
from lmgym.runs.hub import open_hub
from lmgym.runs.layout import trained_in
from lmgym.shell import command

PUSHING = ".pushing"
"""folder below a run's with the weights that are being pushed"""


@final
class Publisher:
    """The pushes of one run: one at a time, in the background until `finish`."""

    def __init__(self, folder: Path, sharing: SharingConfig, private: list[str]) -> None:
        assert sharing.push_to_hub, "there is nothing to push to"
        self._folder, self._repository, self._hub_private = folder, sharing.push_to_hub, sharing.hub_private
        self._private = private
        self._thread: threading.Thread | None = None
        self._done: dict[str, tuple[int, ...]] = {}  # what was pushed to each branch
        self._entries: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        shutil.rmtree(folder / PUSHING, ignore_errors=True)  # of a launch that was killed

    def saved(self) -> None:
        """Begins to push the model that was saved, unless an earlier one is still being pushed."""
        if self._thread is not None and self._thread.is_alive():
            return
        found = [one for one in self._new() if one[1] == publishing.MAIN]  # the last model is saved at the end
        for source, branch in found:
            try:
                files = self._keep(source)
            except Exception as error:  # a full disk, or a folder without links: the end of the run pushes it
                self._warn(error, now=False)
                return
            work = (source, files, branch, _identity(source), False)
            self._thread = threading.Thread(target=self._push, args=work, daemon=True, name="push")
            self._thread.start()

    def finish(self) -> None:
        """Waits for a push in progress, and pushes what is not on the hub yet. It may take long; it raises nothing."""
        if self._thread is not None and self._thread.is_alive():
            say(f"waiting for the push to {self._repository}")
            self._thread.join()
        try:
            for source, branch in self._new():
                say(f"pushing {source.name}/ to {self._repository}")
                files = publishing.read_files(source, self._repository, private=self._private)
                self._push(source, files, branch, _identity(source), True)
        except Exception as error:
            self._warn(error)
        shutil.rmtree(self._folder / PUSHING, ignore_errors=True)

    def entries(self) -> list[dict[str, Any]]:
        """The entries of run.json on the pushes so far."""
        with self._lock:
            return list(self._entries)

    def _new(self) -> list[tuple[Path, str]]:
        """(folder, branch) of what is saved and not pushed."""
        found = publishing.sources(self._folder) if trained_in(self._folder) else []
        return [(source, branch) for source, branch in found if self._done.get(branch) != _identity(source)]

    def _keep(self, source: Path) -> publishing.Files:
        """The files of a model, whose weights stay where the folder is replaced."""
        files = publishing.read_files(source, self._repository, private=self._private)
        place = self._folder / PUSHING
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for name, content in files.items():
            if isinstance(content, Path):
                os.link(content, place / name)
                files[name] = place / name
        return files

    def _push(
        self, source: Path, files: publishing.Files, branch: str, identity: tuple[int, ...], at_end: bool
    ) -> None:
        try:
            hub = open_hub(self._repository)
            pushed = publishing.push(hub, source, files, self._repository, branch, self._hub_private)
        except Exception as error:
            self._warn(error, at_end)
            return
        say(pushed)
        self._done[branch] = identity
        with self._lock:
            self._entries = publishing.add_entry(self._entries, publishing.entry(pushed))

    def _warn(self, error: Exception, now: bool = True) -> None:
        """Says in a line that a push failed, and how it is made up for."""
        private = ["--private"] if self._hub_private else []
        later = f"later: {command('lmgym', 'push', self._folder, self._repository, *private)}"
        then = later if now else f"the end of the run tries again, or {later}"
        say(f"warning: the push to {self._repository} failed ({publishing.reason(error)}); {then}", error=True)


def start_publisher(folder: Path, sharing: SharingConfig | None, record: Mapping[str, Any]) -> Publisher | None:
    """The publisher of a run; None if it pushes nothing."""
    if sharing is None or not sharing.push_to_hub:
        return None
    return Publisher(folder, sharing, publishing.private_paths(record))


def _identity(folder: Path) -> tuple[int, ...]:
    """Device, inode and time: a folder that replaces another one differs in them."""
    found = folder.stat()
    return found.st_dev, found.st_ino, found.st_mtime_ns
