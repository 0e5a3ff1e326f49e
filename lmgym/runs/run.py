"""One output folder with the same layout for every stage: the config, the metrics and the outcome of a run.

    run.json        config, commit, versions, seed, data fingerprint, cost, outcome and exit code
    metrics.jsonl   a line per step
    events.jsonl    warnings, alarms and notes, with the step at which they occurred
    report.html     all of it to look at (lmgym/report)
    checkpoints/    states to resume from (lmgym/runs/checkpoints.py)
    run.N.json, metrics.N.jsonl ...   files of launches that this one resumed, or that ended without a checkpoint
    2/, 3/ ...      later runs, where the user named no folder (lmgym/runs/resuming.py)

Every file is complete at any moment (written to a temporary file, then renamed), except that a kill may cut the last
line of metrics.jsonl. If the folder cannot be written, the rank that writes does not fail alone: `write_error` records
it, and all ranks stop together at their next check (supervisor.py). Nothing here imports torch, so that a run opens
before anything slow or fragile begins.
"""

import json
import math
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO, final

from lmgym.aids import aid, failures
from lmgym.config import SharingConfig
from lmgym.console import say
from lmgym.errors import STORAGE_FULL, InputError, RunStopped, one_line, outcome_of
from lmgym.masking import masked
from lmgym.report.key_figures import total_cost
from lmgym.runs.files import read_json, storage_error, storage_full, write_json, write_lines, write_text
from lmgym.runs.layout import LOGS, lines_up_to, rename_former_run, restore_former_run
from lmgym.runs.locks import FolderLock, cannot_write
from lmgym.runs.paths import absolute
from lmgym.runs.process_state import exits_raise
from lmgym.runs.publisher import Publisher, start_publisher
from lmgym.runs.record import cpu_seconds, describe_run, peak_memory, redact, timestamp
from lmgym.runs.trackers import TrackedRun
from lmgym.runs.tracking import Tracker, Tracking, start_tracker

if TYPE_CHECKING:
    from lmgym.runs.resuming import Start

FINISHED = "LMGYM_FINISHED"
"""the variable with the file in which a finished run writes its folder's path, for the command that started it"""


@final
class Run:
    """A run in progress. Made by `Run.start`; on ranks that are not main every method does nothing."""

    def __init__(self, folder: Path, record: dict[str, Any], metrics: TextIO | None, tracker: Tracker | None) -> None:
        self.folder = folder
        self.is_main = metrics is not None
        self._record = record
        self._metrics = metrics
        self._tracker = tracker
        self._started, self._cpu_started = time.monotonic(), cpu_seconds()
        self._cpu_of_others, self._cpu_ranks = 0.0, 1
        self._lock: FolderLock | None = None
        self._publisher: Publisher | None = None
        self._former: dict[str, Path] = {}
        self._step = 0
        self._has_updates = False
        self._has_outcome = False
        self._exits = ExitStack()
        self._write_error = ""
        self._identity = _identity(folder)

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
        stage: str | None = None,
        sharing: SharingConfig | None = None,
    ) -> "Run":
        """Opens the folder and writes run.json. Raises InputError if the folder cannot be written.

        A resumed run keeps the metrics and checkpoints up to its checkpoint. Without `start` the run is new, and the
        folder is locked here. The files of a former run, which is unfinished, are renamed; if an InputError refuses
        this run before its first update, they are renamed back.
        """
        folder = Path(absolute(str(folder)))
        if not is_main:
            return cls(folder, {}, None, None)
        name = name or folder.resolve().name
        record = describe_run(name, redact(config), seed, data_fingerprint)
        resumed_at = start.resumed_at if start else None
        record |= {"id": start.run_id if start else uuid.uuid4().hex, "resumed_at": resumed_at, "stage": stage}
        lock = (start and start.lock) or FolderLock(folder)
        try:
            former = rename_former_run(folder, resumed_at)
            for log in LOGS:
                if log in former and resumed_at is not None:
                    write_text(folder / log, "".join(lines_up_to(former[log], resumed_at)))
            if resumed_at is not None:
                record["former"] = total_cost(read_json(former["run.json"]))
            metrics = (folder / "metrics.jsonl").open("a", encoding="utf-8")
            write_json(folder / "run.json", record)
        except OSError as error:
            lock.release()
            raise cannot_write(folder, error) from error
        names, before = sharing or SharingConfig(), None if resumed_at is None else former.get("metrics.jsonl")
        tracked = TrackedRun(folder, name, record["id"], record["config"], names, resumed_at, before)
        tracker = start_tracker(tracking, tracked)
        run = cls(folder, record, metrics, tracker)
        run._lock, run._former = lock, former if resumed_at is None else {}
        run._publisher = start_publisher(folder, sharing, record)
        if tracker.about:
            run.update(trackers=tracker.about)
        return run

    @property
    def settings(self) -> Mapping[str, Any]:
        """The run's config by setting, as run.json has it; empty on other ranks than the main one."""
        return self._record.get("config", {})

    @property
    def write_error(self) -> str:
        """The first thing that could not be written, and why, or that the folder is gone; empty if all is well.

        After it only run.json is written, to a folder that is there.
        """
        if self.is_main and not self._write_error and not self._is_there:
            self._write_error = f"{self.folder} was deleted, moved or replaced while the run wrote to it"
        return self._write_error

    @property
    def _is_there(self) -> bool:
        """True if the folder is the one that the run opened."""
        return _identity(self.folder) == self._identity

    @property
    def notes(self) -> list[str]:
        """Notes for the user on the folder: the new names of a former run's files."""
        kept = ", ".join(path.name for path in self._former.values())
        return [f"{self.folder} held a former run; its files are kept as {kept}"] if kept else []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Appends a line: step, seconds since the start, metrics. NaN and infinities become null and are listed."""
        if not self.is_main:
            return
        assert self._metrics, "log comes before finish"
        assert not {"step", "time", "non_finite"} & metrics.keys(), "these names are reserved"
        values = {key: float(value) for key, value in metrics.items()}
        non_finite = [key for key, value in values.items() if not math.isfinite(value)]
        line: dict[str, Any] = {"step": step, "time": self._seconds()}
        line |= {key: None if key in non_finite else value for key, value in values.items()}
        line |= {"non_finite": non_finite} if non_finite else {}
        if not self.write_error:
            with self.writing("metrics.jsonl"):
                # flushed per line, so that a killed run keeps its metrics
                self._metrics.write(json.dumps(line, allow_nan=False) + "\n")
                self._metrics.flush()
        self._step = step
        self._has_updates |= step > 0
        if self._tracker:
            self._tracker.log(step, values)

    def note(self, *texts: str, step: int | None = None) -> None:
        """Adds lines to events.jsonl with a step, by default that of the last metrics. A text that begins with
        "warning:" or "ALARM" is of that kind. Those of aids that have failed come first.
        """
        lines = [*failures(), *filter(None, texts)]
        if not self.is_main or self.write_error or not lines:
            return
        with self.writing("events.jsonl"), (self.folder / "events.jsonl").open("a", encoding="utf-8") as events:
            for text in lines:
                kind = next((kind for kind in ("warning", "alarm") if text.lower().startswith(kind)), "note")
                after = self._step if step is None else step
                event = {"step": after, "time": self._seconds(), "kind": kind, "text": masked(text)}
                events.write(json.dumps(event) + "\n")

    @aid("writing report.html")
    def write_report(self) -> None:
        """Writes report.html from the files of the folder."""
        if not self.is_main or self.write_error:
            return
        from lmgym.report.page import REPORT, report_page  # not needed by a run that is refused

        write_text(self.folder / REPORT, report_page(self.folder))

    @contextmanager
    def writing(self, name: str) -> Iterator[None]:
        """Context manager that records a failed write of `name` in `write_error` instead of raising it."""
        try:
            yield
        except Exception as error:
            cause = storage_error(error) or (" ".join(str(error).split()) if isinstance(error, OSError) else "")
            if not cause:
                raise
            self._write_error = self.write_error or f"{self.folder / name} could not be written ({cause})"

    def write_json(self, name: str, content: Any) -> None:
        """Writes a JSON file of the folder, atomically; the name may include folders."""
        self._write(name, content, write_json)

    def write_lines(self, name: str, rows: Iterable[Any]) -> None:
        """Writes a file with a JSON object per line, atomically; the name may include folders."""
        self._write(name, rows, write_lines)

    def _write(self, name: str, content: Any, write: Callable[[Path, Any], None]) -> None:
        if self.is_main and not self.write_error:
            with self.writing(name):
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                write(self.folder / name, content)

    def publish(self) -> None:
        """Begins to push a model that was saved, if the run is to be on the hub; training goes on meanwhile."""
        if self._publisher:
            self._publisher.saved()

    def update(self, **fields: Any) -> None:
        """Adds fields to run.json, such as counts of data that are known only after reading it."""
        if self.is_main:
            self._record |= redact(fields)
            with self.writing("run.json"):
                if self._is_there:
                    write_json(self.folder / "run.json", self._record)

    @property
    def cpu_seconds(self) -> float:
        """CPU time of this rank since the run began."""
        return cpu_seconds() - self._cpu_started

    def record_cost(self, cpu_seconds_of_ranks: Sequence[float]) -> None:
        """Records the cost so far, so that a run that is killed later has one; the CPU time is that of all ranks."""
        self._cpu_of_others, self._cpu_ranks = sum(cpu_seconds_of_ranks[1:]), len(cpu_seconds_of_ranks)
        self.update(**self._cost())

    def _cost(self) -> dict[str, float]:
        """The cost of this launch, and the memory of its main rank; the other ranks' part is as they last said, since
        one may no longer answer.
        """
        cpu = round(self.cpu_seconds + self._cpu_of_others, 3)
        return {"seconds": self._seconds(), "cpu_seconds": cpu, "cpu_ranks": self._cpu_ranks, **peak_memory()}

    def finish(self, outcome: str = "finished", exit_code: int = 0, error: BaseException | None = None) -> None:
        """Writes the outcome and closes everything. If it is called again, the last outcome counts."""
        self._has_outcome = True
        text = None if error is None else f"{type(error).__name__}: {error}".splitlines()[0]
        try:
            self.update(outcome=outcome, exit_code=exit_code, error=text, ended=timestamp(), **self._cost())
            self._finish_publishing(complete=outcome == "finished")
        finally:
            self._close()
        self.note()
        self.write_report()
        failures(last=True)
        if outcome == "finished" and self.is_main and (note := os.environ.get(FINISHED)):
            Path(note).write_text(str(self.folder.absolute()), encoding="utf-8")

    def _finish_publishing(self, complete: bool) -> None:
        """Records the pushes; of a complete run, once the best model and the last are on the hub, or could not be."""
        publisher, self._publisher = self._publisher, None
        if publisher:
            if complete:
                publisher.finish()
            self.update(pushed=publisher.entries())

    def _close(self) -> None:
        if self._metrics:
            with self.writing("metrics.jsonl"):  # closing writes again what a full disk did not take
                self._metrics.close()
            self._metrics = None
        if self._tracker:
            self._tracker.finish()
            self._tracker = None
        if self._lock:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> "Run":
        self._exits.enter_context(exits_raise())  # of losses, metrics, callbacks: all that runs within it
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exits.close()
        has_outcome = self._has_outcome
        if has_outcome and (error is None or isinstance(error, SystemExit | RunStopped)):
            return  # the caller called `finish` and then left
        if self._former and not self._has_updates and not has_outcome and isinstance(error, InputError):
            self._restore_former_run()
            return
        stopped = self._stopped_by_storage(error) or _stopped_by_lost_rank(error)
        outcome, exit_code = outcome_of(stopped or error)
        earlier = self.write_error
        self.finish(outcome, exit_code, None if outcome in ("finished", "interrupted") else stopped or error)
        if self.write_error and not earlier and not stopped and exit_code != STORAGE_FULL:  # which says so already
            if error is None:
                stopped = storage_full(self.write_error, self.folder)
            else:  # the first error is the one to show
                say(f"warning: the outcome is not recorded: {self.write_error}", error=True)
        if stopped:
            raise stopped from error
        if isinstance(error, SystemExit) and error.code in (None, 0):
            why = "exit(0) was called before the run came to its end; needed: code that returns, or raises an error"
            raise RunStopped(why, outcome, exit_code) from error

    def _restore_former_run(self) -> None:
        with self.writing("the files of the former run"):
            try:
                restore_former_run(self.folder, self._former)
                say(f"refused before its first update: {self.folder} is as it was", error=True)
            finally:
                self._close()

    def _stopped_by_storage(self, error: BaseException | None) -> RunStopped | None:
        """The RunStopped of a run that ends because of a full disk; None if it ends for another reason."""
        if isinstance(error, RunStopped | InputError | SystemExit | KeyboardInterrupt):
            return None
        what = self.write_error if error is None else ""
        if cause := storage_error(error):
            what = f"{self.folder} or a file that it needs could not be written ({cause})"
        if not what:
            return None
        stopped = storage_full(what, self.folder)
        stopped.alone = True
        return stopped

    def _seconds(self) -> float:
        return round(time.monotonic() - self._started, 3)


def _stopped_by_lost_rank(error: BaseException | None) -> RunStopped | None:
    """The RunStopped of a run that lost the connection to another rank, as when that one is killed; else None."""
    distributed = sys.modules.get("torch.distributed")
    is_lost = distributed is not None and isinstance(error, distributed.DistError)
    if not (is_lost or (isinstance(error, RuntimeError) and "gloo/transport" in str(error))):  # gloo has no class
        return None
    why = f"the connection to another rank is lost ({one_line(str(error), 80)}); the launcher says which one ended, "
    stopped = RunStopped(f"{why}and how; the same command goes on from its last checkpoint, if it has one", "failed", 1)
    stopped.alone = os.environ.get("RANK") == "1"  # rank 0 may be the lost one
    stopped.follows = True
    return stopped


def _identity(folder: Path) -> tuple[int, int] | None:
    """The device and inode of a folder; None if it is not there."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
