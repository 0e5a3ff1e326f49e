"""Rows of a dataset with where each came from: hub ids, and local JSONL(.gz), Parquet and CSV."""

import csv
import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    path = Path(source).expanduser()
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.name.endswith(SUFFIXES))
        named = [p for p in files if p.name.startswith(split)]
        if any(p.name.startswith(SPLITS) for p in files) and not named:
            names = ", ".join(p.name for p in files[:6])
            raise InputError(f"dataset {source} has no file for the split {split}; found {names}; name a file")
        if not files:
            raise InputError(f"dataset {source} is a folder without data files; needed: {' '.join(SUFFIXES)}")
        return [record for p in named or files for record in _read_file(p)]
    if path.exists():
        if not path.name.endswith(SUFFIXES):
            raise InputError(
                f"dataset {source} is of no known kind; needed: {' '.join(SUFFIXES)}, a folder or a hub id"
            )
        return list(_read_file(path))
    if source.startswith((".", "/", "~")) or source.endswith(SUFFIXES) or source.count("/") != 1:
        raise InputError(f"dataset {source} does not exist; needed: a file, a folder, or a hub id such as owner/name")
    return _read_hub(source, split)


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
    import pyarrow.parquet
    from pyarrow.lib import ArrowInvalid

    try:
        table = pyarrow.parquet.read_table(path)
    except ArrowInvalid as error:
        raise InputError(f"dataset {path} is no Parquet file: {error}") from error
    for number, row in enumerate(table.to_pylist(), 1):
        yield Record(str(path), number, row)


def _read_hub(source: str, split: str) -> list[Record]:
    import datasets

    try:
        rows = datasets.load_dataset(source, split=split, token=hub_token())
    except Exception as error:  # the hub's own errors are many: each means that nothing could be read
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"dataset {source} (split {split}) is no local path and did not load from the hub: {first}"
        ) from error
    return [Record(f"{source}:{split}", number, row) for number, row in enumerate(rows, 1)]
