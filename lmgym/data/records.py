"""Rows of a dataset with their sources: hub ids, and local JSON, CSV, Parquet and Arrow files, one row after the other.

A row that cannot be read becomes a record with its fault; only a file that is damaged as a whole is an error.
"""

import csv
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lmgym.data.json_rows import document_rows, is_chat, is_document, json_decoder, parse_json
from lmgym.data.rejections import NESTED, NOT_AN_OBJECT, NOT_CSV, NOT_UTF8, UNREADABLE, RowError
from lmgym.data.sources import TABLE_KINDS, find_files, kind_of, load_hub, read_state
from lmgym.data.text_files import DELIMITERS, delimiter_of, first_lines, open_text
from lmgym.errors import InputError, listed, one_line, regular, shown

LONGEST_CELL = 2**31 - 1  # of a CSV; the csv module's own limit of 131,072 characters is below a long chat
BATCH = 1000
ARROW_FILE, ARROW_END = b"ARROW1", b"\xff\xff\xff\xff\0\0\0\0"
LFS = b"version https://git-lfs.github.com/spec/"


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
    used: frozenset[str] = frozenset()
    """columns that such fields hold"""
    row: Mapping[str, Any] | None = None
    """the fields as the file has them, where `fields` differ"""
    note: str = ""
    """on a file's first row: how the file was read, where that is not the usual way"""

    def column(self, field: str) -> str:
        """The column that a field was made of, for messages."""
        return (self.names or {}).get(field, field)


def read_records(source: str, split: str = "train", config: str = "") -> list[Record]:
    """All rows of a source, as `iterate_records` gives them."""
    return list(iterate_records(source, split, config))


def iterate_records(source: str, split: str = "train", config: str = "") -> Iterator[Record]:
    """The rows of a file, a folder of files or a hub id, one by one: all of them need not fit into memory.

    Raises InputError at once if there is nothing to read, and later at a place where a file is damaged as a whole.
    """
    files = find_files(source, split, config)
    if files is None:
        return _table_records(f"{source}:{split}", load_hub(source, split, config).with_format("arrow").iter(BATCH))
    return (record for path in files for record in read_file(path, split))


def read_file(path: Path, split: str | None = None) -> Iterator[Record]:
    """The rows of a file, in order. Raises InputError for a file that is damaged as a whole.

    The split is used by a JSON file that holds several ones, which is refused without it. A folder is one of
    `lmgym.data.sources.read_state` with indices.
    """
    try:
        if path.is_dir():
            yield from _table_records(str(path), _indexed_tables(path))
            return
        with regular(path).open("rb") as file:
            if file.read(len(LFS)) == LFS:
                raise InputError(
                    f"dataset {one_line(str(path))} is not the data but a pointer of Git LFS; needed: the file itself; "
                    "run git lfs pull in its folder"
                )
        if path.name.endswith(".parquet"):
            yield from _table_records(str(path), _parquet_tables(path))
        elif path.name.endswith(".arrow"):
            yield from _table_records(str(path), _arrow_tables(path))
        elif kind_of(path.name) in TABLE_KINDS:
            yield from _read_csv(path)
        else:
            yield from _read_json(path, split)
    except (OSError, csv.Error, EOFError, zlib.error) as error:
        raise InputError(
            f"dataset {one_line(str(path))} cannot be read: {one_line(str(error))}; needed: a whole file; write or "
            "fetch it again"
        ) from error


def _read_csv(path: Path) -> Iterator[Record]:
    delimiter = delimiter_of(path, first_lines(path))
    lines, encoding = open_text(path, "")
    note = _note(encoding, delimiter if delimiter != ("\t" if kind_of(path.name) == ".tsv" else ",") else "")
    with lines:
        reader = csv.DictReader(lines, strict=True, delimiter=delimiter)
        names = _with_long_cells(lambda: reader.fieldnames) or ()
        _refuse_bad_columns(str(path), [name for name in names if name])
        while True:
            after = reader.reader.line_num
            try:
                row = _with_long_cells(reader.__next__)
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
            yield Record(str(path), reader.line_num, {k: v or None for k, v in row.items()}, fault, note=note)
            note = ""


def _note(encoding: str, delimiter: str = "") -> str:
    """How a text file was read, where it is not the usual way."""
    said = [] if encoding.startswith("utf-8") else [f"text in {encoding.upper()}"]
    return ", ".join([*said, f"cells parted by {DELIMITERS[delimiter]}"] if delimiter else said)


def _with_long_cells(read: Callable[[], Any]) -> Any:
    """The result of `read`. The process's own limit is lifted only meanwhile: others may read between two rows."""
    limit = csv.field_size_limit(LONGEST_CELL)
    try:
        return read()
    finally:
        csv.field_size_limit(limit)


def _refuse_bad_columns(file: str, names: Sequence[str]) -> None:
    if any("\udc80" <= character <= "\udcff" for name in names for character in name):
        raise InputError(f"dataset {one_line(file)} has a column whose name is not UTF-8; rename it")
    if twice := [name for name, n in Counter(names).items() if n > 1]:
        raise InputError(
            f"dataset {one_line(file)} has the column(s) {listed(twice)} twice; needed: each column once; rename "
            "or drop one"
        )


def _read_json(path: Path, split: str | None) -> Iterator[Record]:
    named_lines = kind_of(path.name) != ".json"
    with open_text(path)[0] as file:
        lines = filter(None, (line.strip() for line in file))
        is_one = is_document(next(lines, ""), next(lines, ""), named_lines)
    rows = _document_rows(path, split, named_lines) if is_one else None
    if rows is not None:
        yield from rows
        return
    file, encoding = open_text(path)
    note = _note(encoding)
    with file:
        for number, line in enumerate(file, 1):
            if line.strip():
                record = _json_record(path, number, line)
                yield replace(record, note=note) if note else record
                note = ""


def _document_rows(path: Path, split: str | None, named_lines: bool) -> Iterator[Record] | None:
    with open_text(path)[0] as file, _refusing_json(path):
        rows = document_rows(file.read(), split, named_lines)
    return None if rows is None else _json_records(path, rows)


def _json_records(path: Path, rows: Iterator[tuple[int, str | dict[str, Any]]]) -> Iterator[Record]:
    with _refusing_json(path):
        for number, item in rows:
            yield _json_record(path, number, item)


@contextmanager
def _refusing_json(path: Path) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise InputError(
            f"dataset {one_line(str(path))} cannot be read: {error}; needed: objects one a line, a list of objects, or "
            "columns of one length"
        ) from error


def _json_record(path: Path, number: int, item: str | dict[str, Any]) -> Record:
    try:
        row = parse_json(item) if isinstance(item, str) else item
    except RowError as error:
        return Record(str(path), number, {}, error.with_traceback(None))
    if is_chat(row):
        row = {"messages": row}
    if not isinstance(row, dict):
        fault = RowError("(row)", f"{shown(row)}; needed: an object", NOT_AN_OBJECT)
        return Record(str(path), number, {}, fault)
    return Record(str(path), number, row)


def _table_records(file: str, tables: Iterable[Any]) -> Iterator[Record]:
    """The rows of pyarrow tables; if a batch cannot be converted, each of its rows separately."""
    number, decoders = 0, None
    for table in tables:
        if decoders is None:
            _refuse_bad_columns(file, table.column_names)
            decoders = {field.name: decode for field in table.schema if (decode := json_decoder(field.type))}
        for batch in table.to_batches(max_chunksize=BATCH):
            lines = range(number + 1, number + 1 + batch.num_rows)
            try:
                rows = batch.to_pylist()
                for name, decode in decoders.items():
                    for row in rows:
                        row[name] = decode(row[name])
                yield from map(Record, [file] * len(rows), lines, rows)
            except Exception:  # pyarrow raises many kinds: row by row shows which row, and why
                yield from [_table_record(file, line, batch, i, decoders) for i, line in enumerate(lines)]
            number += batch.num_rows


def _table_record(file: str, number: int, batch: Any, row: int, decoders: Mapping[str, Callable]) -> Record:
    fields: dict[str, Any] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            value = column[row].as_py()
            fields[name] = decoders[name](value) if name in decoders else value
        except RowError as error:
            return Record(file, number, fields, RowError(name, error.found, error.reason))
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

    with _refusing_damage(path, "a Parquet file"):
        names = pyarrow.parquet.read_schema(path).names
        _refuse_bad_columns(str(path), names)
        kept = None if wanted is None else [column for column in names if column in wanted]
        return pyarrow.parquet.read_table(path, columns=kept), names


def _parquet_tables(path: Path) -> Iterator[Any]:
    import pyarrow.parquet

    with _refusing_damage(path, "a Parquet file"), pyarrow.parquet.ParquetFile(path) as file:
        _refuse_bad_columns(str(path), file.schema_arrow.names)
        for batch in file.iter_batches(BATCH):
            yield pyarrow.Table.from_batches([batch])


def _arrow_tables(path: Path) -> Iterator[Any]:
    """Of Arrow's streaming format, that of the datasets library, or of its file format."""
    import pyarrow

    with _refusing_damage(path, "a whole Arrow file"), pyarrow.memory_map(str(path)) as source:
        if source.read(len(ARROW_FILE)) == ARROW_FILE:
            file = pyarrow.ipc.open_file(source)
            yield from (pyarrow.Table.from_batches([file.get_batch(i)]) for i in range(file.num_record_batches))
            return
        source.seek(0)
        for batch in pyarrow.ipc.open_stream(source):
            batch.validate()
            yield pyarrow.Table.from_batches([batch])
        source.seek(max(0, source.tell() - len(ARROW_END)))
        if source.read(len(ARROW_END)) != ARROW_END:  # of a process that was killed between two batches
            raise OSError("it ends without Arrow's end mark: rows are missing")


def _indexed_tables(folder: Path) -> Iterator[Any]:
    """Of a dataset whose rows are in the order of its indices."""
    import pyarrow

    state = read_state(folder) or {"data": [], "indices": []}
    whole = pyarrow.concat_tables([table for path in state["data"] for table in _arrow_tables(path)])
    for path in state["indices"]:
        for table in _arrow_tables(path):
            for indices in table.to_batches(max_chunksize=BATCH):
                with _refusing_damage(folder, "a whole saved dataset"):
                    yield whole.take(indices.column(0))


@contextmanager
def _refusing_damage(path: Path, needed: str) -> Iterator[None]:
    import pyarrow

    name = one_line(str(path))
    try:
        regular(path)
        yield
    except UnicodeDecodeError as error:
        raise InputError(f"dataset {name} has a column whose name is not UTF-8; rename it") from error
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"dataset {name} is not {needed}: {one_line(str(error))}; write or fetch it again") from error
