"""Atomic writing of JSON files, their reader, and the recognition of a full or broken disk.

Nothing here imports torch.
"""

import errno
import itertools
import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lmgym.errors import STORAGE_FULL, InputError, RunStopped, found_from, regular, shown, shown_path
from lmgym.masking import mask_keys, masked

# full, over a quota or the maximum file size, read-only, broken
STORAGE_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO})
FILES_ERRORS = frozenset({errno.EMFILE, errno.ENFILE})
RUST_ERROR = re.compile(r"\(os error (\d+)\)")  # of safetensors and tokenizers
TORCH_ERROR = "enforce fail at inline_container.cc"  # of torch.save, which does not give the cause


def read_json(path: Path) -> Any:
    """The content of a JSON file. Raises OSError or ValueError, also for content that is nested too deeply."""
    try:
        return json.loads(regular(path).read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object of a file; empty if there is none: no file, one that cannot be read, or another content."""
    with suppress(OSError, ValueError):
        found = read_json(path)
        return found if isinstance(found, dict) else {}
    return {}


def read_line(path: Path, number: int) -> dict[str, Any]:
    """The JSON object in line `number`, from 1, of a file. Raises InputError if there is none."""
    try:
        with regular(path).open(encoding="utf-8") as lines:
            text = next(itertools.islice(lines, number - 1, None), None) if number > 0 else None
        found = json.loads(text) if text is not None else None
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else "not JSON"
        raise InputError(
            f"{shown_path(path)}, line {number}: {why}; needed: a file of JSON objects, a line each"
        ) from error
    if not isinstance(found, dict):
        what = "there is no such line" if text is None else "not a JSON object"
        raise InputError(
            f"{shown_path(path)}, line {number}: {what}; needed: the number of a line with an object, from 1"
        )
    return found


def whole_lines(path: Path) -> tuple[list[bytes], int]:
    """(lines of a file, bytes behind the last whole one, which a kill left, and which are cut off the file).

    No lines if there is no file.
    """
    if not path.exists():
        return [], 0
    content = regular(path).read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        os.truncate(path, len(whole))
    return whole.splitlines(), len(content) - len(whole)


def write_json(path: Path, content: Any) -> None:
    """Writes valid JSON, atomically, without secrets."""
    write_text(path, masked(json.dumps(_plain(content), indent=2, ensure_ascii=False, allow_nan=False)) + "\n")


def write_lines(path: Path, rows: Iterable[Any]) -> None:
    """Writes a file of valid JSON lines, atomically."""
    lines = [json.dumps(_plain(row), ensure_ascii=False, allow_nan=False) for row in rows]
    write_text(path, "".join(f"{line}\n" for line in lines))


def write_text(path: Path, text: str) -> None:
    """Writes a file atomically: after a kill, or for a reader, it is the old file or the new one. Keys are masked.

    Lone surrogates, which UTF-8 cannot encode, are written as JSON escapes.
    """
    write_bytes(path, mask_keys(text).encode("utf-8", errors="backslashreplace"))


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file atomically: after a kill, or for a reader, it is the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Syncs a file or a folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _plain(value: Any) -> Any:
    """A value as JSON can hold it; NaN, infinities, paths and other objects become text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())  # numbers and arrays of numpy and torch, without importing either
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)


def storage_error(error: BaseException | None) -> str:
    """The message, in one line, of an error, or of one of its causes, that means a full or broken disk; else empty."""
    return next((text for text, numbers in _causes(error) if numbers & STORAGE_ERRORS or TORCH_ERROR in text), "")


def files_error(error: BaseException | None) -> str:
    """The same for an error that means too many open files."""
    words = os.strerror(errno.EMFILE)  # of libraries whose errors have no number
    return next((text for text, numbers in _causes(error) if numbers & FILES_ERRORS or words in text), "")


def _causes(error: BaseException | None) -> Iterator[tuple[str, set[int | None]]]:
    """(message in one line, numbers of the operating system) of an error and of what it came from."""
    while error is not None:
        message = " ".join(str(error).split())[:300]
        number = error.errno if isinstance(error, OSError) else None
        yield message, {number, *map(int, RUST_ERROR.findall(message))}
        error = error.__cause__ or error.__context__


def storage_full(what: str, folder: Path, checkpoint: str = "") -> RunStopped:
    """The RunStopped of a full disk: what could not be written, the free space, and how to resume.

    `checkpoint` describes the last checkpoint.
    """
    existing = next(parent for parent in (folder, *folder.parents) if os.path.exists(parent))
    parts = [what, f"{shutil.disk_usage(existing).free:,} bytes free", *([checkpoint] if checkpoint else [])]
    return RunStopped(
        f"{'; '.join(parts)}; free space or repair the folder, then run the same command again", "failed", STORAGE_FULL
    )


def run_folder(name: str) -> Path:
    """The folder of a run. Raises InputError if there is none."""
    folder = Path(name)
    if not (folder / "run.json").is_file():
        near = sorted(path.parent for path in folder.glob("*/run.json")) if folder.is_dir() else []
        found = f"; its folders with runs: {', '.join(map(str, near[:5]))}" if near else ""
        raise InputError(
            f"{shown(name)} has no run.json{found}; needed: the output folder of a run (lmgym runs lists them)"
            f"{'' if folder.exists() else found_from(name)}"
        )
    return folder
