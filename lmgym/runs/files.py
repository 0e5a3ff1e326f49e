"""JSON files that are whole at any moment, their reader, and a full or broken disk told from other errors.

Nothing here imports torch.
"""

import errno
import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lmgym.errors import STORAGE_FULL, RunStopped


def read_json(path: Path) -> Any:
    """The content of a JSON file. Raises OSError or ValueError, also where it is nested too deeply."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def write_json(path: Path, content: Any) -> None:
    """Writes valid JSON, atomically."""
    write_text(path, json.dumps(_plain(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_lines(path: Path, rows: Iterable[Any]) -> None:
    """Writes a file of valid JSON lines, atomically."""
    lines = [json.dumps(_plain(row), ensure_ascii=False, allow_nan=False) for row in rows]
    write_text(path, "".join(f"{line}\n" for line in lines))


def write_text(path: Path, text: str) -> None:
    """Writes a file atomically: a reader, or a kill, meets the old file or the new one.

    Half a surrogate pair, which UTF-8 has no bytes for, is written as JSON escapes it.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def _plain(value: Any) -> Any:
    """What JSON can hold: NaN and infinities, paths and other things as their text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())  # numbers and arrays of numpy and torch, without importing either
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)


# full, over its quota or the size that a file may have, turned read-only, broken
ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO})


IN_RUST = re.compile(r"\(os error (\d+)\)")  # of safetensors and tokenizers


IN_TORCH = "enforce fail at inline_container.cc"  # of torch.save, which does not say why


def storage_error(error: BaseException | None) -> str:
    """What a disk that takes no more has said, by this error or one that it came of, in a line; else empty."""
    while error is not None:
        said = " ".join(str(error).split())[:300]
        if isinstance(error, OSError) and error.errno in ERRORS:
            return said
        in_rust = IN_RUST.search(said)
        if (in_rust and int(in_rust[1]) in ERRORS) or IN_TORCH in said:
            return said
        error = error.__cause__ or error.__context__
    return ""


def free_bytes(path: Path) -> str:
    """What the disk of a path has free, or of the folder that would hold it."""
    existing = next(parent for parent in (path, *path.parents) if os.path.exists(parent))
    return f"{shutil.disk_usage(existing).free:,} bytes free"


def storage_full(what: str, folder: Path, checkpoint: str = "") -> RunStopped:
    """The end of a run for want of space: what could not be written, what is free, and how to go on.

    `checkpoint` says which one there is.
    """
    where = f"{checkpoint}; " if checkpoint else ""
    return RunStopped(
        f"{what}; {free_bytes(folder)}; {where}free space or mend the folder, then run the same command again",
        "failed",
        STORAGE_FULL,
    )
