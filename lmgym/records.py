"""Rows of a dataset with where each came from: hub ids, and local JSONL(.gz), Parquet and CSV."""

import csv
import difflib
import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lmgym.errors import InputError
from lmgym.tracking import hub_token

SPLITS = ("train", "test", "valid", "eval", "dev")
SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet", ".csv")


@dataclass(frozen=True)
class Record:
    """One row as it was found. `line` counts from 1, headers included; `fault` is what is wrong with it as such."""

    file: str
    line: int
    fields: dict[str, Any]
    fault: str = ""


def read_records(source: str, split: str = "train") -> list[Record]:
    """All rows of a file, a folder of files or a hub id. Raises InputError where there is nothing to read."""
    files = _files(source, split)
    if files is None:
        rows = _load_hub(source, split)
        return [Record(f"{source}:{split}", number, row) for number, row in enumerate(rows, 1)]
    return [record for path in files for record in _read_file(path)]


@dataclass(frozen=True)
class Columns:
    """Rows of a dataset as columns of one table, with where each came from; for rows by the million.

    `table` holds those of the wanted columns that exist, `names` all that the dataset has; `file` indexes `files` and
    `line` is as in Record. Rows that could not be read as such are `faults`.
    """

    table: Any
    names: tuple[str, ...]
    files: tuple[str, ...]
    file: np.ndarray
    line: np.ndarray
    faults: tuple[Record, ...] = ()


def read_columns(source: str, wanted: Sequence[str], split: str = "train") -> Columns:
    """The wanted columns of a file, a folder of files or a hub id, as far as they exist.

    Parquet is read without a Python object a row. Raises InputError where there is nothing to read, and for a column
    that mixes types.
    """
    import pyarrow

    files = _files(source, split)
    if files is None:
        rows = _load_hub(source, split)
        kept = rows.select_columns([name for name in rows.column_names if name in wanted])
        parts: list[Any] = [(f"{source}:{split}", tuple(rows.column_names), kept.with_format("arrow")[:], None, [])]
    else:
        parts = [(str(path), *_file_columns(path, wanted)) for path in files]
    tables = [part[2] for part in parts]
    try:
        table = pyarrow.concat_tables(tables, promote_options="permissive")
    except pyarrow.ArrowException as error:
        raise InputError(f"the files of {source} have columns of different types: {error}") from error
    return Columns(
        table,
        tuple(dict.fromkeys(name for part in parts for name in part[1])),
        tuple(part[0] for part in parts),
        np.repeat(np.arange(len(parts)), [t.num_rows for t in tables]),
        np.concatenate([np.arange(1, part[2].num_rows + 1) if part[3] is None else part[3] for part in parts]),
        tuple(fault for part in parts for fault in part[4]),
    )


def require_columns(columns: Columns, needed: Sequence[Sequence[str]]) -> None:
    """Raises InputError for a needed column that is absent; one may go by several names. Names the near ones."""
    absent = [names for names in needed if not set(names) & set(columns.names)]
    if not absent:
        return
    found = list(columns.names)
    near = {name: match for names in absent for name in names for match in difflib.get_close_matches(name, found, 1)}
    hint = "".join(f"; is {match} meant to be {name}? rename it" for name, match in near.items())
    raise InputError(
        f"{columns.files[0]} lacks the column(s) {', '.join(' or '.join(names) for names in absent)}; "
        f"found: {', '.join(found) or 'none'}; needed: {', '.join(names[0] for names in needed)}{hint}"
    )


def _file_columns(path: Path, wanted: Sequence[str]):
    """(all names, a table of the wanted columns, line of each row or None for 1, 2, .., faults) of one file."""
    import pyarrow

    if path.name.endswith(".parquet"):
        names = tuple(_parquet(path, lambda parquet: parquet.read_schema(path)).names)
        kept = [name for name in names if name in wanted]
        return names, _parquet(path, lambda parquet: parquet.read_table(path, columns=kept)), None, []
    records = list(_read_file(path))
    good = [record for record in records if not record.fault]
    names = tuple(dict.fromkeys(name for record in good for name in record.fields))
    columns = {}
    for name in (name for name in names if name in wanted):
        try:
            columns[name] = pyarrow.array([record.fields.get(name) for record in good])
        except pyarrow.ArrowException as error:
            raise InputError(f"column {name} of {path} mixes types: {error}; needed: one type") from error
    lines = np.array([record.line for record in good], dtype=np.int64)
    return names, pyarrow.table(columns), lines, [record for record in records if record.fault]


def _files(source: str, split: str) -> list[Path] | None:
    """The files that a source names, None for a hub id."""
    path = Path(source).expanduser()
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.name.endswith(SUFFIXES))
        named = [p for p in files if p.name.startswith(split)]
        if any(p.name.startswith(SPLITS) for p in files) and not named:
            names = ", ".join(p.name for p in files[:6])
            raise InputError(f"dataset {source} has no file for the split {split}; found {names}; name a file")
        if not files:
            raise InputError(f"dataset {source} is a folder without data files; needed: {' '.join(SUFFIXES)}")
        return named or files
    if path.exists():
        if not path.name.endswith(SUFFIXES):
            raise InputError(
                f"dataset {source} is of no known kind; needed: {' '.join(SUFFIXES)}, a folder or a hub id"
            )
        return [path]
    if source.startswith((".", "/", "~")) or source.endswith(SUFFIXES) or source.count("/") != 1:
        raise InputError(f"dataset {source} does not exist; needed: a file, a folder, or a hub id such as owner/name")
    return None


def _read_file(path: Path) -> Iterator[Record]:
    try:
        if path.name.endswith(".parquet"):
            yield from _read_parquet(path)
        elif path.name.endswith(".csv"):
            with path.open(newline="", encoding="utf-8-sig") as lines:
                reader = csv.DictReader(lines)
                for row in reader:
                    fault = "more cells than the header names" if row.pop(None, None) else ""
                    # an absent cell is None, an empty one is missing too: CSV has no null
                    yield Record(str(path), reader.line_num, {k: v or None for k, v in row.items()}, fault)
        else:
            yield from _read_json(path)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, csv.Error, EOFError, zlib.error) as error:
        raise InputError(f"dataset {path} cannot be read: {error}") from error


def _read_json(path: Path) -> Iterator[Record]:
    open_file = gzip.open if path.suffix == ".gz" else open
    with open_file(path, "rt", encoding="utf-8-sig") as lines:
        if path.name.removesuffix(".gz").endswith(".json") and lines.read(64).lstrip()[:1] == "[":
            lines.seek(0)
            for number, row in enumerate(json.load(lines), 1):
                yield _record(path, number, row)
            return
        lines.seek(0)
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    row = json.loads(line)
                except ValueError as error:
                    yield Record(str(path), number, {}, f"not JSON: {error}")
                    continue
                yield _record(path, number, row)


def _record(path: Path, number: int, row: Any) -> Record:
    if not isinstance(row, dict):
        return Record(str(path), number, {}, f"a JSON {type(row).__name__}; needed: an object")
    return Record(str(path), number, row)


def _read_parquet(path: Path) -> Iterator[Record]:
    table = _parquet(path, lambda parquet: parquet.read_table(path))
    for number, row in enumerate(table.to_pylist(), 1):
        yield Record(str(path), number, row)


def _parquet(path: Path, read: Callable[[Any], Any]) -> Any:
    """What `read` makes of a file with pyarrow.parquet."""
    import pyarrow.parquet

    try:
        return read(pyarrow.parquet)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise InputError(f"dataset {path} is no Parquet file: {error}") from error


def _load_hub(source: str, split: str):
    import datasets

    try:
        return datasets.load_dataset(source, split=split, token=hub_token())
    except Exception as error:  # the hub's own errors are many: each means that nothing could be read
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"dataset {source} (split {split}) is no local path and did not load from the hub: {first}"
        ) from error
