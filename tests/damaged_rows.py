"""Files with bad rows, and the check of what readers say of them."""

from pathlib import Path

import pyarrow as pa

from lmgym.data.rejections import Rejection

DEEP = "[" * 100_000


def write(path: Path, *lines: str | bytes) -> str:
    path.write_bytes(b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines))
    return str(path)


def check(rejections: list[Rejection], *wanted: tuple[int, str, str]) -> None:
    """(line, field, reason) of each; every reason is one short printable line."""
    assert [(one.line, one.field, one.reason) for one in rejections] == list(wanted)
    for one in rejections:
        assert str(one).isprintable()
        assert len(str(one)) < 500


def broken_text(texts: list[str], at: int) -> pa.Array:
    """Text of which one is not UTF-8, as a damaged Parquet file has it."""
    data = [text.encode() for text in texts]
    data[at] = b"\xff\xfe"
    return pa.array(data, pa.binary()).view(pa.string())
