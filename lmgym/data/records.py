"""Rows of a dataset with their sources: hub ids, and local JSONL(.gz), JSON lists, Parquet and CSV.

A row that cannot be read becomes a record with its fault; only a file that is damaged as a whole is an error.
"""

import csv
import gzip
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmgym.data.json_rows import list_items, parse_json
from lmgym.data.rejections import NESTED, NOT_AN_OBJECT, NOT_CSV, NOT_UTF8, UNREADABLE, RowError
from lmgym.errors import InputError, listed, one_line, shown
from lmgym.runs.tracking import hub_token

SPLITS = ("train", "test", "valid", "eval", "dev")
SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet", ".csv")
LONGEST_CELL = 2**31 - 1  # of a CSV; the csv module's own limit of 131,072 characters is below a long chat
BATCH = 1000


@dataclass(frozen=True)
class Record:
    """A row as it was found."""

    file: str
    line: int
    """from 1, headers included"""
    fields: dict[str, Any]
    fault: RowError | None = None
    """the reason that the row could not be read, if so"""
    names: Mapping[str, str] | None = None
    """the columns that fields were made of, of a row in another tool's format (lmgym/data/formats.py)"""

    def column(self, field: str) -> str:
        """The column that a field was made of, for messages."""
        return (self.names or {}).get(field, field)


def read_records(source: str, split: str = "train") -> list[Record]:
    """All rows of a file, a folder of files or a hub id. Raises InputError if there is nothing to read."""
    files = find_files(source, split)
    if files is None:
        return list(_table_records(f"{source}:{split}", load_hub(source, split).with_format("arrow")[:]))
    return [record for path in files for record in read_file(path)]


def find_files(source: str, split: str) -> list[Path] | None:
    """The files of a source; None for a hub id."""
    path, name = Path(source).expanduser(), one_line(source)
    if _exists(path) and path.is_dir():
        try:
            files = sorted(p for p in path.iterdir() if p.name.endswith(SUFFIXES))
        except OSError as error:
            raise InputError(f"dataset {name} cannot be read: {one_line(str(error))}") from error
        named = [p for p in files if p.name.startswith(split)]
        if any(p.name.startswith(SPLITS) for p in files) and not named:
            found = listed((p.name for p in files), 6)
            raise InputError(f"dataset {name} has no file for the split {one_line(split)}; found {found}; name a file")
        if not files:
            raise InputError(f"dataset {name} is a folder without data files; needed: {' '.join(SUFFIXES)}")
        return named or files
    if _exists(path):
        if not path.name.endswith(SUFFIXES):
            raise InputError(f"dataset {name} is of no known kind; needed: {' '.join(SUFFIXES)}, a folder or a hub id")
        return [path]
    if source.startswith((".", "/", "~")) or source.endswith(SUFFIXES) or source.count("/") != 1:
        raise InputError(f"dataset {name} does not exist; needed: a file, a folder, or a hub id such as owner/name")
    return None


def _exists(path: Path) -> bool:
    """True if the path exists; False also for one that is too long or holds a NUL."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def read_file(path: Path) -> Iterator[Record]:
    """The rows of a file, in order. Raises InputError for a file that is damaged as a whole."""
    try:
        if path.name.endswith(".parquet"):
            yield from _table_records(str(path), read_parquet(path)[0])
        elif path.name.endswith(".csv"):
            yield from _read_csv(path)
        else:
            yield from _read_json(path)
    except (OSError, csv.Error, EOFError, zlib.error) as error:
        raise InputError(
            f"dataset {one_line(str(path))} cannot be read: {one_line(str(error))}; needed: a whole file; write or "
            "fetch it again"
        ) from error


def _open(path: Path, **settings: Any) -> Any:
    # bytes that are not UTF-8 become lone surrogates, so that only their row fails
    opened = gzip.open if path.suffix == ".gz" else open
    return opened(path, "rt", encoding="utf-8-sig", errors="surrogateescape", **settings)


def _read_csv(path: Path) -> Iterator[Record]:
    limit = csv.field_size_limit(LONGEST_CELL)
    try:
        with _open(path, newline="") as lines:
            reader = csv.DictReader(lines, strict=True)
            _refuse_bad_columns(path, [name for name in reader.fieldnames or () if name])
            while True:
                after = reader.reader.line_num
                try:
                    row = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    end = reader.reader.line_num
                    where = f", in lines {after + 1} to {end}" if end > after + 1 else ""
                    broken = RowError("(row)", f"not CSV: {one_line(str(error))}{where}", NOT_CSV)
                    yield Record(str(path), end, {}, broken)
                    continue
                surplus = row.pop(None, None)
                found = f"more cells than the header names: {len(row)} columns, {len(surplus or ())} cells more"
                fault = RowError("(row)", found, NOT_CSV) if surplus else None
                # CSV has no null: an empty cell counts as missing, like an absent one
                yield Record(str(path), reader.line_num, {k: v or None for k, v in row.items()}, fault)
    finally:
        csv.field_size_limit(limit)


def _refuse_bad_columns(path: Path, names: list[str]) -> None:
    if any("\udc80" <= character <= "\udcff" for name in names for character in name):
        raise InputError(f"dataset {one_line(str(path))} has a column whose name is not UTF-8; rename it")
    if twice := [name for name, n in Counter(names).items() if n > 1]:
        raise InputError(
            f"dataset {one_line(str(path))} has the column(s) {listed(twice)} twice; needed: each column once; rename "
            "or drop one"
        )


def _read_json(path: Path) -> Iterator[Record]:
    with _open(path) as lines:
        if path.name.removesuffix(".gz").endswith(".json") and lines.read(64).lstrip()[:1] == "[":
            lines.seek(0)
            try:
                for number, item in enumerate(list_items(lines.read()), 1):
                    yield _json_record(path, number, item)
            except ValueError as error:
                raise InputError(
                    f"dataset {one_line(str(path))} cannot be read: {error}; needed: one JSON list of objects"
                ) from error
            return
        lines.seek(0)
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _json_record(path, number, line)


def _json_record(path: Path, number: int, text: str) -> Record:
    try:
        row = parse_json(text)
    except RowError as error:
        return Record(str(path), number, {}, error.with_traceback(None))
    if not isinstance(row, dict):
        fault = RowError("(row)", f"{shown(row)}; needed: an object", NOT_AN_OBJECT)
        return Record(str(path), number, {}, fault)
    return Record(str(path), number, row)


def _table_records(file: str, table: Any) -> Iterator[Record]:
    """The rows of a pyarrow table; if a batch cannot be converted, each of its rows separately."""
    number = 0
    for batch in table.to_batches(max_chunksize=BATCH):
        lines = range(number + 1, number + 1 + batch.num_rows)
        try:
            yield from [Record(file, line, row) for line, row in zip(lines, batch.to_pylist(), strict=True)]
        except Exception:  # pyarrow raises many kinds: row by row shows which row, and why
            yield from [_table_record(file, line, batch, i) for i, line in enumerate(lines)]
        number += batch.num_rows


def _table_record(file: str, number: int, batch: Any, row: int) -> Record:
    fields: dict[str, Any] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            fields[name] = column[row].as_py()
        except Exception as error:
            return Record(file, number, fields, cell_fault(name, error))
    return Record(file, number, fields)


def cell_fault(name: str, error: Exception) -> RowError:
    """The fault of a row with a value that could not be read."""
    if isinstance(error, UnicodeError):
        return RowError(name, "text that is not UTF-8", NOT_UTF8)
    if isinstance(error, RecursionError):
        return RowError(name, "too many levels of lists and objects", NESTED)
    return RowError(name, f"cannot be read: {type(error).__name__}: {one_line(str(error))}", UNREADABLE)


def read_parquet(path: Path, wanted: Collection[str] | None = None) -> tuple[Any, list[str]]:
    """(table of the wanted columns that exist, or of all, names of all columns) of a file.

    Raises InputError if the file is damaged or not Parquet.
    """
    import pyarrow.parquet

    name = one_line(str(path))
    try:
        names = pyarrow.parquet.read_schema(path).names
        _refuse_bad_columns(path, names)
        kept = None if wanted is None else [column for column in names if column in wanted]
        return pyarrow.parquet.read_table(path, columns=kept), names
    except UnicodeDecodeError as error:
        raise InputError(f"dataset {name} has a column whose name is not UTF-8; rename it") from error
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"dataset {name} is not a Parquet file: {one_line(str(error))}") from error


def load_hub(source: str, split: str) -> Any:
    """A split of a dataset on the hub. Raises InputError if it does not load."""
    import datasets

    try:
        return datasets.load_dataset(source, split=split, token=hub_token())
    except Exception as error:  # the hub raises many kinds: each means that nothing could be read
        first = one_line((str(error).strip().splitlines() or [type(error).__name__])[0])
        found = f"dataset {one_line(source)} (split {one_line(split)})"
        raise InputError(f"{found} is not a local path and did not load from the hub: {first}") from error
