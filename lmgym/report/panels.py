"""The parts of a report: a panel is a chart, a table, or replies to read; a section is a heading over panels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lmgym.report.charts import Spec
from lmgym.report.run_files import Row


@dataclass(frozen=True)
class Card:
    """A figure at the top: its last value, the one before training (empty if there is none), what it means, and a note
    below it.
    """

    label: str
    value: str
    before: str = ""
    about: str = ""
    note: str = ""


@dataclass(frozen=True)
class Table:
    """Columns and rows of text; the columns in `numbers` are aligned to the right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Panel:
    """One thing to look at, with a sentence on how to read it. One of chart, table, pairs, episodes, viewer is set."""

    id: str
    title: str
    about: str = ""
    chart: Spec | None = None
    table: Table | None = None
    pairs: Sequence[Row] = ()
    """replies side by side, see samples.py"""
    terms: Mapping[str, str] = field(default_factory=dict)
    """definitions of names in the panel: shown when pointed at"""
    episodes: Sequence[Row] = ()
    viewer: Row | None = None
    """content of a viewer, which the script of its own package draws"""
    wide: bool = False


@dataclass(frozen=True)
class Section:
    """Panels under a heading; a section without panels is left out of the page."""

    id: str
    title: str
    panels: Sequence[Panel] = field(default_factory=list)


def figure(value: Any) -> str:
    """A number for people: `0.712`, `12,345`, `1.2e-05`; other values as text, None as a dash."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.1f}"
    return f"{value:.3f}" if abs(value) >= 0.01 or value == 0 else f"{value:.2g}"


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
