"""One output folder in one layout for every stage: what was run, what it measured and how it ended.

    run.json        config, commit, versions, seed, data fingerprint, outcome and exit code
    metrics.jsonl   a line a step
    checkpoints/    states to go on from (lmgym/runs/checkpoints.py)
    run.N.json, metrics.N.jsonl, checkpoints.N/, model.N/ ...   what former runs in this folder left

Every file is whole at any moment (written aside, then renamed), except that a kill may cut the last line of
metrics.jsonl. A folder that cannot be written is no error of the one rank that writes to it, but noted in `unwritten`:
all ranks end together where they meet next (supervisor.py). Nothing here imports torch, so that a run can be opened
before anything slow or fragile begins.
"""

import json
import math
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO, final

from lmgym.console import say
from lmgym.errors import InputError, RunStopped, outcome_of, shown_path
from lmgym.runs.files import storage_error, storage_full, write_json, write_lines, write_text
from lmgym.runs.layout import WRITTEN, lines_up_to, remove_path, set_aside_former_run
from lmgym.runs.locks import FolderLock
from lmgym.runs.record import describe_run, redact, timestamp
from lmgym.runs.tracking import Tracker, Tracking, start_tracker

if TYPE_CHECKING:
    from lmgym.runs.resuming import Start


@final
class Run:
    """A run under way. Made by `Run.start`; on ranks that are not main every method does nothing."""

    def __init__(self, folder: Path, record: dict[str, Any], metrics: TextIO | None, tracker: Tracker | None) -> None:
        self.folder = folder
        self.is_main = metrics is not None
        self._record = record
        self._metrics = metrics
        self._tracker = tracker
        self._began = time.monotonic()
        self._lock: FolderLock | None = None
        self._former: dict[str, Path] = {}
        self._learned = False
        self.unwritten = ""
        """the first thing that could not be written, and why; nothing but run.json is written after it"""

    @classmethod
    def start(
        cls,
        folder: str | Path,
        config: dict[str, Any],
        seed: int,
        tracking: Tracking = "auto",
        data_fingerprint: str | None = None,
        is_main: bool = True,
        name: str | None = None,
        start: "Start | None" = None,
    ) -> "Run":
        """Opens the folder and writes run.json. Raises InputError where the folder cannot be written.

        A run that goes on from a checkpoint keeps the metrics and checkpoints up to there. Without `start` it begins
        anew, and the folder is locked here. What a former run left is set aside; refused by an InputError before its
        first update, this run puts it back.
        """
        folder = Path(folder)
        if not is_main:
            return cls(folder, {}, None, None)
        name = name or folder.resolve().name
        record = describe_run(name, redact(config), seed, data_fingerprint)
        resumed_at = start.resumed_at if start else None
        record |= {"id": start.run_id if start else uuid.uuid4().hex, "resumed_at": resumed_at}
        lock = (start and start.lock) or FolderLock(folder)
        try:
            former = set_aside_former_run(folder, resumed_at)
            if "metrics.jsonl" in former and resumed_at is not None:
                write_text(folder / "metrics.jsonl", "".join(lines_up_to(former["metrics.jsonl"], resumed_at)))
            metrics = (folder / "metrics.jsonl").open("a", encoding="utf-8")
            write_json(folder / "run.json", record)
        except OSError as error:
            lock.release()
            cause = error.strerror or error
            raise InputError(
                f"cannot write a run to {shown_path(folder)}: {cause}; free space, or name another folder"
            ) from error
        run = cls(folder, record, metrics, start_tracker(tracking, folder, record["config"], name))
        run._lock, run._former = lock, former if resumed_at is None else {}
        return run

    @property
    def notes(self) -> list[str]:
        """What people should know of the folder: that a former run's files have other names now."""
        kept = ", ".join(path.name for path in self._former.values())
        return [f"{self.folder} held a former run; its files are kept as {kept}"] if kept else []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Appends one line: step, seconds since the start, metrics. NaN and infinities become null, and are named."""
        if not self.is_main:
            return
        assert self._metrics, "log comes before finish"
        assert not {"step", "time", "non_finite"} & metrics.keys(), "these names are the line's own"
        values = {key: float(value) for key, value in metrics.items()}
        non_finite = [key for key, value in values.items() if not math.isfinite(value)]
        line: dict[str, Any] = {"step": step, "time": round(self._seconds(), 3)}
        line |= {key: None if key in non_finite else value for key, value in values.items()}
        line |= {"non_finite": non_finite} if non_finite else {}
        if not self.unwritten:
            with self.writing("metrics.jsonl"):
                # a line at a time reaches the file, so that a killed run keeps what it measured
                self._metrics.write(json.dumps(line, allow_nan=False) + "\n")
                self._metrics.flush()
        self._learned |= step > 0
        if self._tracker:
            self._tracker.log(step, values)

    @contextmanager
    def writing(self, name: str) -> Iterator[None]:
        """Within, a folder that cannot be written is noted in `unwritten`, with what was to be written."""
        try:
            yield
        except Exception as error:
            said = storage_error(error) or (" ".join(str(error).split()) if isinstance(error, OSError) else "")
            if not said:
                raise
            self.unwritten = self.unwritten or f"{self.folder / name} could not be written ({said})"

    def write_json(self, name: str, content: Any) -> None:
        """Writes `content` to a file of the folder, atomically; the name may have folders in it."""
        if self.is_main and not self.unwritten:
            with self.writing(name):
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                write_json(self.folder / name, content)

    def write_lines(self, name: str, rows: Iterable[Any]) -> None:
        """Writes a JSON object a line, atomically; the name may have folders in it."""
        if self.is_main and not self.unwritten:
            with self.writing(name):
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                write_lines(self.folder / name, rows)

    def update(self, **fields: Any) -> None:
        """Adds fields to run.json, as counts of data that are known only once it is read."""
        if self.is_main:
            self._record |= redact(fields)
            with self.writing("run.json"):
                write_json(self.folder / "run.json", self._record)

    def finish(self, outcome: str = "finished", exit_code: int = 0, error: BaseException | None = None) -> None:
        """Writes how the run ended and closes what is open. May be called again: the last word stands."""
        said = None if error is None else f"{type(error).__name__}: {error}".splitlines()[0]
        seconds = round(self._seconds(), 3)
        try:
            self.update(outcome=outcome, exit_code=exit_code, error=said, ended=timestamp(), seconds=seconds)
        finally:
            self._close()

    def _close(self) -> None:
        if self._metrics:
            with self.writing("metrics.jsonl"):  # what a full disk did not take is tried again
                self._metrics.close()
            self._metrics = None
        if self._tracker:
            self._tracker.finish()
            self._tracker = None
        if self._lock:
            self._lock.release()
            self._lock = None

    def _withdraw(self) -> None:
        """Puts back what was set aside, in the place of the little that this run wrote."""
        try:
            for name in WRITTEN:
                remove_path(self.folder / name)
            # run.json last: killed in here, the next run says where it is
            for name, aside in reversed(self._former.items()):
                aside.rename(self.folder / name)
            say(f"refused before its first update: {self.folder} is as it was", error=True)
        finally:
            self._close()

    def __enter__(self) -> "Run":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        said = self._record.get("outcome") != "running"
        if said and (error is None or isinstance(error, SystemExit | RunStopped)):
            return  # the caller gave its own word, then left
        stopped = self._stopped_by_storage(error)
        outcome, exit_code = outcome_of(stopped or error)
        if self._former and not self._learned and not said and isinstance(error, InputError):
            with self.writing("what a former run left"):
                self._withdraw()
            return
        before = self.unwritten
        self.finish(outcome, exit_code, None if outcome in ("finished", "interrupted") else stopped or error)
        if self.unwritten and not before and not stopped:
            if error is None:
                stopped = storage_full(self.unwritten, self.folder)
            else:  # the first error is the one to show
                say(f"warning: the outcome is not recorded: {self.unwritten}", error=True)
        if stopped:
            raise stopped from error

    def _stopped_by_storage(self, error: BaseException | None) -> RunStopped | None:
        """What a run ends with that met a full disk and has not been ended for it: by the rank that met it."""
        if isinstance(error, RunStopped | InputError | SystemExit | KeyboardInterrupt):
            return None
        said = storage_error(error)
        if error is None and self.unwritten:
            what = self.unwritten
        elif said:
            what = f"{self.folder} or what it needs could not be written ({said})"
        else:
            return None
        stopped = storage_full(what, self.folder)
        stopped.alone = True
        return stopped

    def _seconds(self) -> float:
        return time.monotonic() - self._began
