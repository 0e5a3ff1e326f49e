"""The runs under a folder: how each ended, its main metric, its cost, and whether it can be resumed.

Only run.json, evaluation.json and both ends of metrics.jsonl are read. Anybody may have written them: a file that is
missing, broken, huge or no file at all is a reason, not an error. Nothing here imports torch.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmgym.errors import InputError, found_from, one_line, regular, shown_path
from lmgym.report.key_figures import (
    NOT_MEASURED,
    BeforeAndAfter,
    MainMetric,
    before_and_after,
    main_metric,
    total_cost,
    why_none,
)
from lmgym.report.metric import ALL
from lmgym.report.run_files import is_number, kept_update
from lmgym.runs.files import read_json
from lmgym.runs.layout import RUN_FILES
from lmgym.runs.locks import is_free

DEPTH = 4
"""folders below the given one in which runs are found"""
MOST_RECORD_BYTES = 1 << 24
END_BYTES = 1 << 20
"""of either end of metrics.jsonl: thousands of lines, and so the first and the last evaluation"""
CHECKPOINT = re.compile(r"step-(\d{8})")
# a run's own folders hold no runs, nor do those of former runs: model, model.1
OWN_FOLDER = re.compile(rf"({'|'.join(name for name in RUN_FILES if '.' not in name)}|wandb)(\.\d+)?")


@dataclass(frozen=True)
class ListedRun:
    """A run, as its folder describes it."""

    folder: Path
    record: Mapping[str, Any]
    """run.json"""
    outcome: str
    """that of run.json, but `killed` for a run that is recorded as running and holds no lock"""
    metric: MainMetric | None = None
    figures: BeforeAndAfter = NOT_MEASURED
    """the main metric before the first update, and of the model that is kept"""
    updates: float = 0
    """that were made, as far as the metrics say"""
    checkpoint: int | None = None
    """the updates before the newest checkpoint"""

    @property
    def before(self) -> float | None:
        """The main metric before the first update."""
        return self.figures.before[1] if self.figures.before else None

    @property
    def after(self) -> float | None:
        """That of the model that is kept, after an update."""
        return self.figures.after[1] if self.figures.after else None

    @property
    def measured_after(self) -> int | None:
        """The update after which `after` was measured."""
        return int(self.figures.after[0]) if self.figures.after else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of `after`."""
        return _ends(self.figures.after)

    @property
    def interval_before(self) -> tuple[float, float] | None:
        """The 95% interval of `before`."""
        return _ends(self.figures.before)

    @property
    def why_none(self) -> str:
        """Why there is no result of a run that was evaluated before training; empty if there is one."""
        none = self.metric is not None and self.figures.after is None
        return why_none(one_line(self.outcome, 20), self.updates) if none else ""

    @property
    def cost(self) -> dict[str, float]:
        """Launches, seconds, CPU seconds and GPU seconds, with those of the launches that it resumed."""
        return total_cost(self.record)

    @property
    def unfinished(self) -> bool:
        """True if the run has ended before its end: its command starts it again."""
        return self.outcome not in ("finished", "running")

    def text(self, name: str) -> str:
        """A text of run.json; empty if there is none."""
        value = self.record.get(name)
        return value if isinstance(value, str) else ""


def _ends(measured: tuple[float, ...] | None) -> tuple[float, float] | None:
    _, _, *ends = measured or (0, 0)
    return (ends[0], ends[1]) if ends else None


@dataclass(frozen=True)
class Listing:
    """The runs of a folder, the newest first, and a line on each folder or run.json that could not be read."""

    runs: list[ListedRun] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def list_runs(root: Path, depth: int = DEPTH) -> Listing:
    """The runs in a folder and at most `depth` folders below it. Raises InputError if there is no such folder."""
    if not root.is_dir():
        found = "is a file" if root.exists() else "does not exist"
        elsewhere = "" if root.exists() else found_from(root)
        raise InputError(f"{shown_path(root)} {found}; needed: a folder of runs, such as outputs{elsewhere}")
    listing = Listing()
    for path in _folders(root, depth, listing.problems):
        if os.path.lexists(path / "run.json"):
            try:
                run = read_run(path)
            except (OSError, ValueError) as error:
                listing.problems.append(f"{shown_path(path / 'run.json')}: {_reason(error)}")
                continue
            if "outcome" in run.record:  # a model of `lmgym get` has a record too, and no outcome
                listing.runs.append(run)
    listing.runs.sort(key=lambda run: (run.text("started"), str(run.folder)), reverse=True)
    return listing


def read_run(folder: Path) -> ListedRun:
    """The run of a folder. Raises OSError or ValueError if its run.json cannot be read."""
    record = _read_record(folder / "run.json")
    outcome = record.get("outcome")
    outcome = outcome if isinstance(outcome, str) else "unknown"
    if outcome == "running" and is_free(folder):
        outcome = "killed"
    return ListedRun(folder, record, outcome, *_main_values(folder, record), _newest_checkpoint(folder))


def was_killed(folder: Path) -> bool:
    """True if run.json says that the run is going on, and no process holds its folder."""
    try:
        return read_run(folder).outcome == "killed"
    except (OSError, ValueError):
        return False


def _folders(folder: Path, depth: int, problems: list[str]) -> Iterator[Path]:
    """A folder and those below it, but not the insides of a run; links are not followed."""
    yield folder
    if depth == 0:
        return
    try:
        with os.scandir(folder) as entries:
            inner = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError as error:
        problems.append(f"{shown_path(folder)}: {_reason(error)}")
        return
    for name in inner:
        if not name.startswith(".") and not OWN_FOLDER.fullmatch(name):
            yield from _folders(folder / name, depth - 1, problems)


def _read_record(path: Path) -> Mapping[str, Any]:
    if not path.is_file():  # a pipe would be waited for
        raise ValueError("not a file")
    if path.stat().st_size > MOST_RECORD_BYTES:
        raise ValueError(f"{path.stat().st_size:,} bytes, at most {MOST_RECORD_BYTES:,} are read")
    record = read_json(path)
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    return record


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return "not valid JSON"
    return one_line((error.strerror if isinstance(error, OSError) else "") or str(error))


def _main_values(folder: Path, record: Mapping[str, Any]) -> tuple[MainMetric | None, BeforeAndAfter, float]:
    """(the main metric, its figures, the updates that were made)."""
    from lmgym.statistics import ENDS  # not at the top: it imports numpy, which `lmgym --help` does not need

    evaluation: Mapping[str, Any] = {}
    with suppress(OSError, ValueError):
        evaluation = _read_record(folder / "evaluation.json")
    lines = list(lines_of(folder))
    evaluations = [(step, values) for step, values in lines if any(name.startswith("eval/") for name in values)]
    evaluations += _saved_evaluation(evaluation)
    stage, updates = record.get("stage"), max((step for step, _ in lines), default=0)
    names = {name for _, values in evaluations for name in values}
    metric = main_metric(names, stage if isinstance(stage, str) and stage in ALL else "")
    if metric is None:
        return None, NOT_MEASURED, updates
    points = []
    for step, values in sorted(evaluations, key=lambda one: one[0]):
        if is_number(value := values.get(metric.name)):
            ends = [values.get(metric.name + end) for end in ENDS]
            points.append((step, value, *(ends if all(map(is_number, ends)) else ())))
    return metric, before_and_after(points, kept_update(evaluation, record)), updates


def _saved_evaluation(evaluation: Mapping[str, Any]) -> Iterator[tuple[float, Mapping[str, Any]]]:
    """(update, metrics) of evaluation.json, with the names of metrics.jsonl."""
    metrics, update = evaluation.get("metrics"), evaluation.get("update")
    if isinstance(metrics, dict) and is_number(update):
        yield update, {f"eval/{name}": value for name, value in metrics.items()}


def evaluations_of(folder: Path) -> Iterator[tuple[float, Mapping[str, Any]]]:
    """The lines of `lines_of` that have figures of an evaluation."""
    return (found for found in lines_of(folder) if any(name.startswith("eval/") for name in found[1]))


def lines_of(folder: Path) -> Iterator[tuple[float, Mapping[str, Any]]]:
    """(step, metrics) of the first and the last lines of metrics; lines that are cut are left out."""
    path = folder / "metrics.jsonl"
    with suppress(OSError):
        if not path.is_file():
            return
        with regular(path).open("rb") as file:
            ends = file.read(2 * END_BYTES)
            if file.read(1):
                file.seek(-END_BYTES, os.SEEK_END)
                ends = ends[:END_BYTES] + b"\n" + file.read(END_BYTES)
        for line in ends.splitlines():
            with suppress(ValueError, RecursionError):
                values = json.loads(line)
                if isinstance(values, dict) and is_number(step := values.get("step")):
                    yield step, values


def _newest_checkpoint(folder: Path) -> int | None:
    """The updates before the newest checkpoint, by its name; a resume verifies its content."""
    with suppress(OSError):
        names = os.listdir(folder / "checkpoints")
        return max((int(match[1]) for name in names if (match := CHECKPOINT.fullmatch(name))), default=None)
    return None
