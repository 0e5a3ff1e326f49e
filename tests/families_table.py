"""The table of docs/families.md, out of what the tests of families record; `make test-full` writes it.

Tests run in several processes and two sessions: what each records travels with its report, and of the table only the
cells of tests that ran are replaced.
"""

import math
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "LMGYM_FAMILIES_TABLE"  # names the file to write; without it nothing is written
PROPERTY = "family"
ROOT = Path(__file__).resolve().parent.parent
STAGES = "Every stage"
FORWARD = "Checked at the level of the forward"
COLUMNS = {
    STAGES: (
        *("family", "rows", "from alone", "reward model", "SFT", "DPO", "PPO frozen layers", "GRPO with LoRA", "chat"),
        *("two ranks", "commit"),
    ),
    FORWARD: ("family", "rows", "from alone", "commit"),
}
FAILED = "failed"
Cells = dict[str, dict[str, dict[str, str]]]
"""text by table, family and column"""


class Recorder:
    """Notes cells of a family's row, for the length of a test."""

    def __init__(self, record_property) -> None:
        self.record_property = record_property

    def __call__(self, table: str, family: str, **cells: str) -> None:
        """Cells by column, with _ for a space in its name."""
        named = {column.replace("_", " "): text for column, text in cells.items()}
        assert named.keys() <= set(COLUMNS[table]), named
        self.record_property(PROPERTY, {"table": table, "family": family, "cells": named})


def below(differences: list[float]) -> str:
    """The power of ten that the largest of these does not reach: the same on every machine, or nearly."""
    largest = max(differences)
    return "0" if largest == 0 else f"< 1e{math.floor(math.log10(largest)) + 1}"


_cells: Cells = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collects what tests recorded; a test that failed leaves the word in its cells."""
    if report.when != "call":
        return
    for name, value in report.user_properties:
        if name == PROPERTY:
            collect(_cells, value, report.passed)


def collect(cells: Cells, recorded: dict[str, Any], passed: bool) -> None:
    """Adds what a test recorded; of a cell that several tests record each must pass."""
    row = cells.setdefault(recorded["table"], {}).setdefault(recorded["family"], {})
    for column, text in recorded["cells"].items():
        row[column] = text if passed and row.get(column) != FAILED else FAILED


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes the table once all processes are done."""
    path = os.environ.get(VARIABLE)
    if path and _cells and not hasattr(session.config, "workerinput"):
        file, made_at = Path(path), commit(Path(path))
        for row in (row for rows in _cells.values() for row in rows.values()):
            row["commit"] = made_at
        file.write_text(with_cells(file.read_text(encoding="utf-8"), _cells), encoding="utf-8")


def commit(page: Path) -> str:
    """The commit that is checked out, with a mark if files other than the page were changed since."""

    def git(*words: str) -> str:
        return subprocess.run(("git", *words), cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

    changed = git("diff", "--name-only", "HEAD", "--", ".", f":(exclude){page.resolve().relative_to(ROOT)}")
    return git("rev-parse", "--short", "HEAD") + (", changed" if changed else "")


def with_cells(page: str, cells: Cells) -> str:
    """The page with these cells in its tables, rows in the order of the list of families."""
    from families import FAMILIES, OTHERS

    for table, families in ((STAGES, FAMILIES), (FORWARD, OTHERS)):
        before, heading, after = page.partition(f"## {table}\n")
        assert heading, f"the page has no heading: ## {table}"
        known, begin, end = _read(after)
        columns = COLUMNS[table]
        lines = [_line(columns), _line(["---"] * len(columns))]
        for family in families:
            row = known.get(family.name, {}) | cells.get(table, {}).get(family.name, {})
            if row:
                lines.append(_line([family.name, *(row.get(column, "") for column in columns[1:])]))
        page = before + heading + after[:begin] + "".join(lines) + after[end:]
    return page


def _line(cells) -> str:
    return f"| {' | '.join(cells)} |\n"


def _read(text: str) -> tuple[dict[str, dict[str, str]], int, int]:
    """The rows of the first table of a text by family, and where it begins and ends."""
    begin = text.index("|")
    end = begin
    rows = []
    for line in text[begin:].splitlines(keepends=True):
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip().strip("|").split("|")])
        end += len(line)
    return {row[0]: dict(zip(rows[0][1:], row[1:], strict=False)) for row in rows[2:]}, begin, end
