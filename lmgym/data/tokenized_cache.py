"""Tokenised data sets kept on disk: found again by what they were made of, and made once for all ranks of a machine.

They lie beside the `datasets` library's own (HF_DATASETS_CACHE), in the folder lmgym/KEY, which may be deleted at any
time. The key is a hash of the data's bytes, the settings, the tokenizer with its chat template, and the code that
reads.
"""

import datetime
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist
from huggingface_hub import constants

from lmgym.data.sources import content_digest
from lmgym.distributed.ranks import local_rank, raise_on_all_ranks, world_size

T = TypeVar("T")
CODE = ("lmgym/*.py", "lmgym/config/**/*.py", "lmgym/data/**/*.py")  # the base layer, and what reads with it
PATIENCE = datetime.timedelta(days=1)  # of ranks that wait for the one that tokenises


def cache_folder() -> Path:
    """The folder of tokenised data sets."""
    # as `datasets` has it, which takes a second to import
    beside = os.environ.get("HF_DATASETS_CACHE") or os.path.join(constants.HF_HOME, "datasets")
    return Path(beside) / "lmgym"


def key_of(sources: Sequence[tuple[str, str]], settings: Mapping[str, Any], tokenizer, stage: str) -> str:
    """The key of data sets, (name, split) each, prepared with these settings by the code of a stage's package."""
    contents = [[name, split, content_digest(name, split)] for name, split in sources]
    words = json.dumps([contents, dict(settings), hash_tokenizer(tokenizer)], default=str)
    code = _hash_code((*CODE, f"{stage}/**/*.py"))
    return hashlib.sha256(f"{words}{code}".encode()).hexdigest()[:40]


def hash_tokenizer(tokenizer) -> str:
    """A hash of a tokenizer with its chat template."""
    if tokenizer.is_fast:
        content = tokenizer.backend_tokenizer.to_str()
    else:
        content = json.dumps([type(tokenizer).__name__, sorted(tokenizer.get_vocab().items())])
    template = json.dumps([tokenizer.chat_template, tokenizer.special_tokens_map], default=str)
    return hashlib.sha256(f"{content}\0{template}".encode(errors="surrogatepass")).hexdigest()


def _hash_code(patterns: Sequence[str]) -> str:
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for file in sorted({file for pattern in patterns for file in root.glob(pattern)}):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def made_once(key: str, write: Callable[[Path], None], read: Callable[[Path], T], make: Callable[[], T]) -> T:
    """The result of `read` for a key's folder, after `write` filled it on the first rank of the machine. Collective.

    Where nothing can be written each rank makes its own. An InputError of one rank is raised on all.
    """
    folder = cache_folder() / key

    def fill() -> None:
        if local_rank() == 0 and not folder.is_dir():
            _fill(folder, write)

    raise_on_all_ranks(fill, patient_group())
    try:
        return read(folder)
    except (OSError, ValueError, KeyError):  # there is no room for it, or it was deleted or damaged
        return make()


def _fill(folder: Path, write: Callable[[Path], None]) -> None:
    """Write a folder whole or not at all."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    except OSError:
        return
    try:
        write(partial)
        os.replace(partial, folder)
    except OSError:  # a full disk, or another run was faster
        pass
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def patient_group() -> Any:
    """A group in which ranks wait for hours; None with one rank. Collective."""
    several = world_size() > 1 and dist.is_initialized()
    return dist.new_group(backend="gloo", timeout=PATIENCE) if several else None
