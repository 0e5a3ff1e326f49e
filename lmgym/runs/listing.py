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
from lmgym.report.key_figures import MainMetric, main_metric, total_cost
from lmgym.report.run_files import is_number
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
    before: float | None = None
    """the main metric before the first update"""
    after: float | None = None
    """the last one that was measured after it"""
    interval: tuple[float, float] | None = None
    """of `after`, 95%"""
    checkpoint: int | None = None
    """the updates before the newest checkpoint"""

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
    return ListedRun(folder, record, outcome, *_main_values(folder), _newest_checkpoint(folder))


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


def _main_values(
    folder: Path,
) -> tuple[MainMetric | None, float | None, float | None, tuple[float, float] | None]:
    """(the main metric, its value before the first update, its last value after that, the interval of that)."""
    from lmgym.statistics import ENDS  # not at the top: it imports numpy, which `lmgym --help` does not need

    evaluations = [*evaluations_of(folder), *_last_evaluation(folder / "evaluation.json")]
    metric = main_metric({name for _, values in evaluations for name in values})
    if metric is None:
        return None, None, None, None
    known = [(step, values) for step, values in evaluations if is_number(values.get(metric.name))]
    before = next((values[metric.name] for step, values in known if step == 0), None)
    last: Mapping[str, Any] = next((values for step, values in reversed(known) if step != 0), {})
    low, high = (last.get(metric.name + end) for end in ENDS)
    return metric, before, last.get(metric.name), (low, high) if is_number(low) and is_number(high) else None


def _last_evaluation(path: Path) -> Iterator[tuple[float, Mapping[str, Any]]]:
    """(a step after all others, metrics) of evaluation.json, with the names of metrics.jsonl."""
    with suppress(OSError, ValueError):
        metrics = _read_record(path).get("metrics")
        if isinstance(metrics, dict):
            yield float("inf"), {f"eval/{name}": value for name, value in metrics.items()}


def evaluations_of(folder: Path) -> Iterator[tuple[float, Mapping[str, Any]]]:
    """(step, metrics) of evaluations in the first and the last lines of metrics; lines that are cut are left out."""
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
            if b'"eval/' in line:
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
