"""The files of a run's folder, and the renaming of a former run's files."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lmgym.errors import regular
from lmgym.runs.files import read_json, write_json

NON_FINITE = "non_finite.json"
LOGS = ("metrics.jsonl", "events.jsonl")
"""files that grow by lines, each with its step"""
RUN_FILES = (
    *("run.json", *LOGS, "checkpoints", "model", "last", "adapter", "critic", "samples", "episodes", "stalls"),
    *("journal", "rejected.jsonl", "evaluation.json", "scores.jsonl", "held_out.jsonl", "report.html", "tensorboard"),
    *("rounds", "engine", NON_FINITE),
)
"""everything that a stage writes to its folder: a run that begins again renames these"""
FINAL = "run/"
"""names of a run's final figures, which are no line of their own on trackers"""


def trained_in(folder: Path) -> Path | None:
    """The model or adapter in the folder of a run that has trained one."""
    return next((found for name in ("model", "adapter") if (found := folder / name).is_dir()), None)


def model_of(name: str) -> str:
    """The folder of what a run has trained, if a name is that of a run's folder; else the same name."""
    folder = Path(name).expanduser()
    is_run = (folder / "run.json").is_file() and not (folder / "config.json").is_file()
    return str((trained_in(folder) if is_run else None) or name)


def rename_former_run(folder: Path, resumed_at: int | None) -> dict[str, Path]:
    """Renames the files of a former run, which is unfinished, to the first free number; returns the new path of each.

    For a resumed run the results stay, its record and logs are copied (after a kill in here, the run must still be
    found and resumed), and its report of a non-finite loss is renamed, because it no longer holds. A former run whose
    outcome is still "running" was killed, since its lock is free.
    """
    names = RUN_FILES if resumed_at is None else ("run.json", *LOGS, NON_FINITE)
    number = 1
    while any(_numbered(folder / name, number).exists() for name in RUN_FILES):
        number += 1
    former = {name: _numbered(folder / name, number) for name in names if (folder / name).exists()}
    # run.json last: after a kill in here, the next run still knows the owner of the other files
    for name, path in reversed(former.items()):
        if resumed_at is None or name == NON_FINITE:
            (folder / name).rename(path)
        else:
            shutil.copy2(folder / name, path)
    with suppress(OSError, ValueError, KeyError, TypeError):
        record = read_json(former["run.json"])
        if record["outcome"] == "running":
            write_json(former["run.json"], record | {"outcome": "killed"})
    return former


def restore_former_run(folder: Path, former: dict[str, Path]) -> None:
    """Undoes `rename_former_run`: removes the new run's files and renames the former ones back."""
    for name in RUN_FILES:
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    # run.json last: after a kill in here, the next run says where it is
    for name, path in reversed(former.items()):
        path.rename(folder / name)


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}.{number}{path.suffix}")


def lines_up_to(path: Path, step: int) -> Iterator[str]:
    """The valid lines of a log up to a step, without a former run's final figures."""
    return (f"{json.dumps(line)}\n" for at, line in logged_lines(path) if at <= step and not is_final(line))


def is_final(line: Mapping[str, Any]) -> bool:
    """True for the final figures of a run."""
    return any(name.startswith(FINAL) for name in line)


def logged_lines(path: Path) -> Iterator[tuple[int, dict]]:
    """(step, line) of the valid lines of a log; none if there is no such file."""
    if not path.is_file():
        return
    with regular(path).open(encoding="utf-8", errors="replace") as lines:
        for text in lines:
            with suppress(ValueError, KeyError, TypeError, RecursionError):
                line = json.loads(text)
                yield int(line["step"]), line
