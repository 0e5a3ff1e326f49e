"""A disk that takes no more, however the library that met it says so. Nothing here imports torch."""

import errno
import os
import re
import shutil
from pathlib import Path

from lmgym.errors import STORAGE_FULL, RunStopped

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
