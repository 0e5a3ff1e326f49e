"""Columns of datasets with millions of rows: each has one kind, and a bad value fails its row, never the file.

Nothing here loops over rows unless a column holds a value that its kind does not allow.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmgym.data.column_kinds import Floats, Kind, convert_column, convert_values
from lmgym.data.mixing import set_names
from lmgym.data.records import read_file, read_parquet
from lmgym.data.rejections import Rejection, RowError
from lmgym.data.sources import find_files, load_hub
from lmgym.errors import InputError, listed, nearest, one_line


@dataclass(frozen=True)
class Columns:
    """Rows of a dataset as columns of one table, with the source of each row."""

    table: Any
    """the wanted columns that exist: text, numbers as float64, ids as int64 or text"""
    names: tuple[str, ...]
    """all columns of the dataset"""
    files: tuple[str, ...]
    file: np.ndarray
    """[rows]: index into `files`"""
    line: np.ndarray
    """[rows], as in Record"""
    bad: np.ndarray
    """[rows]: true if a value is of another kind than its column; it is null in the table"""
    rejections: tuple[Rejection, ...] = ()
    """of the bad rows, and of those that could not be read and are not in the table"""
    sets: tuple[int, ...] = ()
    """the place of each file's data set among those of the source"""

    def numbers(self, name: str) -> Floats:
        """A column of numbers, null as NaN."""
        return self.table[name].to_numpy().astype(np.float64)

    def is_null(self, name: str) -> NDArray[np.bool_]:
        """[rows]: true where a column has no value."""
        return self.table[name].is_null(nan_is_null=True).to_numpy()

    def place(self, row: int | np.integer) -> tuple[str, int]:
        """(file, line) of a row."""
        return self.files[self.file[row]], int(self.line[row])


@dataclass(frozen=True)
class _Part:
    """The rows of one file."""

    names: tuple[str, ...]
    columns: dict[str, Any]
    lines: np.ndarray
    bad: dict[int, RowError]
    """by row"""
    faults: list[Rejection]
    """of rows that could not be read"""


def read_columns(source: str, wanted: Mapping[str, Kind], split: str = "train", max_rows: int | None = None) -> Columns:
    """The wanted columns that data sets have, of the first `max_rows` rows of each: files, folders of files or hub ids.

    Parquet is read without a Python object per row. Raises InputError if there is nothing to read, and for a column
    without a usable value.
    """
    parts: dict[str, _Part] = {}
    sets: dict[str, int] = {}
    for place, name in enumerate(set_names(source)):
        files = find_files(name, split)
        if files is None:
            of_set = {f"{name}:{split}": _table_part(load_hub(name, split).with_format("arrow")[:], wanted)}
        else:
            of_set = {str(path): _file_part(path, split, wanted) for path in files}
        left = max_rows
        for file, part in of_set.items():
            if left == 0 or file in parts:
                continue
            parts[file] = part if left is None else _first(part, left)
            sets[file] = place
            left = None if left is None else left - len(parts[file].lines)
    found = replace(_join(parts, wanted), sets=tuple(sets.values()))
    _refuse_useless_columns(found, wanted)
    return found


def _join(parts: Mapping[str, _Part], wanted: Mapping[str, Kind]) -> Columns:
    import pyarrow

    names = tuple(dict.fromkeys(name for part in parts.values() for name in part.names))
    sizes = [len(part.lines) for part in parts.values()]
    columns = {}
    for name in (name for name in names if name in wanted):
        arrays = [part.columns.get(name, pyarrow.nulls(size)) for part, size in zip(parts.values(), sizes, strict=True)]
        columns[name] = _one_type(arrays, wanted[name])
    starts = np.cumsum([0, *sizes])
    bad = np.zeros(starts[-1], dtype=bool)
    rejections: list[Rejection] = []
    for start, (file, part) in zip(starts, parts.items(), strict=False):
        bad[[start + row for row in part.bad]] = True
        of_rows = [fault.at(file, int(part.lines[row])) for row, fault in part.bad.items()]
        rejections += sorted([*part.faults, *of_rows], key=lambda rejection: rejection.line)
    lines = np.concatenate([part.lines for part in parts.values()])
    return Columns(
        pyarrow.table(columns),
        names,
        tuple(parts),
        np.repeat(np.arange(len(parts)), sizes),
        lines,
        bad,
        tuple(rejections),
    )


def _one_type(arrays: Sequence[Any], kind: Kind) -> Any:
    """A column of several files; ids that are integers in one file and text in another are text."""
    import pyarrow

    types = {array.type for array in arrays if not pyarrow.types.is_null(array.type)}
    target = next(iter(types)) if len(types) == 1 else pyarrow.large_string()
    if not types:
        target = pyarrow.float64() if kind.type == "number" else pyarrow.string()
    cast = [array.cast(target) for array in arrays]
    return pyarrow.chunked_array([chunk for array in cast for chunk in getattr(array, "chunks", [array])], type=target)


def _first(part: _Part, rows: int) -> _Part:
    """The first rows of a file, and the rows that could not be read before the next one."""
    if rows >= len(part.lines):
        return part
    return replace(
        part,
        columns={name: column.slice(0, rows) for name, column in part.columns.items()},
        lines=part.lines[:rows],
        bad={row: fault for row, fault in part.bad.items() if row < rows},
        faults=[fault for fault in part.faults if fault.line < part.lines[rows]],
    )


def _refuse_useless_columns(columns: Columns, wanted: Mapping[str, Kind]) -> None:
    """Raises InputError for a column that has values, none of them usable."""
    for name in columns.table.column_names:
        first = next((rejection for rejection in columns.rejections if rejection.field == name), None)
        if first is not None and columns.is_null(name).all():
            found = f"line {first.line} holds {first.found.partition(';')[0]}"
            raise InputError(
                f"column {one_line(name, 80)} of {one_line(first.file)} has no value that can be used: {found}; "
                f"needed: {wanted[name].needed}"
            )


def require_columns(columns: Columns, needed: Sequence[Sequence[str]]) -> None:
    """Raises InputError, with similar names, if a needed column is absent; each may have several names."""
    absent = [names for names in needed if not set(names) & set(columns.names)]
    if not absent:
        return
    found = [name for name in columns.names if name]
    near = {name: match for names in absent for name in names if (match := nearest(name, found, 0.6))}
    hint = "".join(f"; is {one_line(match, 80)} meant to be {name}? rename it" for name, match in near.items())
    raise InputError(
        f"{one_line(columns.files[0])} lacks the column(s) {', '.join(' or '.join(names) for names in absent)}; "
        f"found: {listed(found)}; needed: {', '.join(names[0] for names in needed)}{hint}"
    )


def _file_part(path: Path, split: str, wanted: Mapping[str, Kind]) -> _Part:
    if path.name.endswith(".parquet"):
        table, names = read_parquet(path, wanted)
        return _table_part(table, wanted, names)
    records = list(read_file(path, split))
    good = [record for record in records if record.fault is None]
    names = list(dict.fromkeys(name for record in good for name in record.fields))
    columns, bad = _convert(
        names, wanted, lambda name, kind: convert_values([record.fields.get(name) for record in good], kind, name)
    )
    lines = np.array([record.line for record in good], dtype=np.int64)
    faults = [record.fault.at(record.file, record.line) for record in records if record.fault]
    return _Part(tuple(names), columns, lines, bad, faults)


def _table_part(table: Any, wanted: Mapping[str, Kind], names: Iterable[str] | None = None) -> _Part:
    columns, bad = _convert(table.column_names, wanted, lambda name, kind: convert_column(table[name], kind, name))
    return _Part(tuple(names or table.column_names), columns, np.arange(1, table.num_rows + 1), bad, [])


def _convert(
    names: Iterable[str], wanted: Mapping[str, Kind], convert: Callable[[str, Kind], tuple[Any, dict[int, RowError]]]
) -> tuple[dict[str, Any], dict[int, RowError]]:
    """(the wanted columns, the first fault of each bad row)."""
    columns: dict[str, Any] = {}
    bad: dict[int, RowError] = {}
    for name in names:
        if name in wanted:
            columns[name], faults = convert(name, wanted[name])
            bad |= faults | bad
    return columns, bad
