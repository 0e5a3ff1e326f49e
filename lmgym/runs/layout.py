"""The files of a run's folder, and setting those of a former run aside."""

import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from lmgym.runs.files import read_json, write_json

NON_FINITE = "non_finite.json"


WRITTEN = (
    *("run.json", "metrics.jsonl", "checkpoints", "model", "adapter", "critic", "samples", "stalls", "rejected.jsonl"),
    *("evaluation.json", "scores.jsonl", "held_out.jsonl", NON_FINITE),
)
"""all that a stage writes to its folder: a run that begins anew sets these aside"""


def set_aside_former_run(folder: Path, resumed_at: int | None) -> dict[str, Path]:
    """Renames what a former run left to the first number that nothing has taken; where each is now.

    Of one that goes on the results stay, and its record and metrics are copied: killed in here, it must still be known
    as the run to go on with. What it said of a loss that was not finite no longer holds. One that never said how it
    ended was killed, since nobody holds the lock.
    """
    names = WRITTEN if resumed_at is None else ("run.json", "metrics.jsonl", NON_FINITE)
    number = 1
    while any(_numbered(folder / name, number).exists() for name in WRITTEN):
        number += 1
    aside = {name: _numbered(folder / name, number) for name in names if (folder / name).exists()}
    # run.json last: killed in here, the next run still knows whose the rest is
    for name, path in reversed(aside.items()):
        if resumed_at is None or name == NON_FINITE:
            (folder / name).rename(path)
        else:
            shutil.copy2(folder / name, path)
    with suppress(OSError, ValueError, KeyError, TypeError):
        record = aside["run.json"]
        said = read_json(record)
        if said["outcome"] == "running":
            write_json(record, said | {"outcome": "killed"})
    return aside


def remove_path(path: Path) -> None:
    """Removes a file, a link or a whole folder; nothing where there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}.{number}{path.suffix}")


def lines_up_to(path: Path, step: int) -> Iterator[str]:
    """The lines of a metrics file up to a step; left out are one that a kill has cut, and those of a whole run."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            with suppress(ValueError, KeyError, TypeError, RecursionError):
                figures = json.loads(line)
                if figures["step"] <= step and not any(name.startswith("run/") for name in figures):
                    yield line
