"""The answers of models as judges, in a SQLite file that processes share: no question is paid for twice.

The file has digests of questions, and the judge's own words with its thoughts, which may quote what was judged.
SQLite's write-ahead log needs a local disk.
"""

import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, final

from lmgym.errors import InputError, one_line, shown_path
from lmgym.scoring.label_probabilities import Reading

VARIABLE = "LMGYM_VERDICTS"
SECONDS = 60.0  # that a process waits for the others' writing
TABLE = "CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, model TEXT, reading TEXT) WITHOUT ROWID"
T = TypeVar("T")


def cache_file() -> Path:
    """$LMGYM_VERDICTS, or ~/.cache/lmgym/verdicts.sqlite."""
    if given := os.environ.get(VARIABLE, "").strip():
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lmgym/verdicts.sqlite"


def key_of(*parts: Any) -> str:
    """A digest of what an answer depends on."""
    return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode(errors="surrogatepass")).hexdigest()


@final
class VerdictCache:
    """Readings by key. Threads and processes may share it. Raises InputError for a file that cannot be used."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or cache_file()
        self._lock, self._process = threading.Lock(), 0
        self._connection: sqlite3.Connection | None = None
        self._use(lambda connection: connection.execute(TABLE))

    def __len__(self) -> int:
        """Readings in the file, of every model."""
        return self._use(lambda connection: connection.execute("SELECT COUNT(*) FROM verdicts").fetchone()[0])

    def get(self, key: str) -> Reading | None:
        """The reading of a key; None if there is none."""
        row = self._use(lambda c: c.execute("SELECT reading FROM verdicts WHERE key = ?", (key,)).fetchone())
        return Reading(*json.loads(row[0])) if row else None

    def put(self, key: str, model: str, reading: Reading) -> None:
        """Keeps a reading, at once; of two for a key the first stays."""
        parts = [reading.text, dict(reading.masses), dict(reading.pending), reading.thought, reading.fault]
        row = (key, model, json.dumps(parts))
        self._use(lambda connection: connection.execute("INSERT OR IGNORE INTO verdicts VALUES (?, ?, ?)", row))

    def _use(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            try:
                return work(self._opened())
            except (sqlite3.Error, OSError) as error:
                raise InputError(
                    f"the verdicts of judges cannot be kept in {shown_path(self.path)}: {one_line(str(error), 80)}; "
                    f"needed: a file on a local disk that can be written; {VARIABLE} names another one"
                ) from error

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None or self._process != os.getpid():  # a fork must not use its parent's connection
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self.path, SECONDS, isolation_level=None, check_same_thread=False)
            for setting in ("journal_mode = WAL", "synchronous = NORMAL"):
                connection.execute(f"PRAGMA {setting}").fetchall()
            self._connection, self._process = connection, os.getpid()
        return self._connection
