"""Text files of rows: packed or not, in the encoding that their first bytes tell, with the delimiter of their cells."""

import codecs
import csv
import gzip
import io
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any

from lmgym.data.sources import kind_of

MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
         (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))  # fmt: skip
"""a file's first bytes, and the encoding that they tell; UTF-32's begin with UTF-16's"""
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
LOOKED = 20  # rows by which the delimiter is told


def open_text(path: Path, newline: str | None = None) -> tuple[IO[str], str]:
    """(the file as text, its encoding). Bytes that are not of the encoding become lone surrogates: their row fails."""
    file: Any = _unpacked(path)
    head = file.peek(256)[:256]
    encoding = next((name for mark, name in MARKS if head.startswith(mark)), "utf-8")
    if encoding == "utf-8" and head[1::2].count(0) > len(head) // 4:  # without a mark, as some spreadsheets write it
        encoding = "utf-16-le"
    elif encoding == "utf-8" and head[::2].count(0) > len(head) // 4:
        encoding = "utf-16-be"
    errors = "surrogateescape" if encoding.startswith("utf-8") else "replace"
    return io.TextIOWrapper(file, encoding=encoding, errors=errors, newline=newline), encoding


def _unpacked(path: Path) -> Any:
    if path.suffix == ".zst":
        import pyarrow

        return io.BufferedReader(pyarrow.input_stream(str(path), compression="zstd"))
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def delimiter_of(path: Path, lines: Sequence[str]) -> str:
    """What parts the cells of a table: what its name says, unless another one alone gives its rows several cells."""
    usual = "\t" if kind_of(path.name) == ".tsv" else ","
    if _columns(lines, usual) > 1:
        return usual
    found = {mark: _columns(lines, mark) for mark in DELIMITERS}
    return max(found, key=lambda mark: found[mark]) if max(found.values()) > 1 else usual


def _columns(lines: Sequence[str], delimiter: str) -> int:
    """Cells of the header, if most rows have as many; else 1."""
    try:
        sizes = [len(row) for row in csv.reader(lines, delimiter=delimiter) if row]
    except csv.Error:
        sizes = [len(lines[0].split(delimiter))] if lines else [1]
    if not sizes:
        return 1
    [(size, count)] = Counter(sizes).most_common(1)
    return sizes[0] if size == sizes[0] and count > len(sizes) / 2 else 1


def first_lines(path: Path) -> list[str]:
    """A table's first lines, to tell its delimiter."""
    with open_text(path, "")[0] as file:
        return list(islice(file, LOOKED))
