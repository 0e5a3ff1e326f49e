"""A fingerprint of a model's weights, for what is of use only with the same model: a checkpoint of an adapter."""

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from transformers import PretrainedConfig
from transformers.utils.hub import extract_commit_hash

from lmgym.models.scorer_folders import adapter_base, file_of
from lmgym.models.sources import ADAPTER, source_arguments

READERS = 4
WEIGHTS = ("config.json", "*.safetensors")


def fingerprint(name: str, role: str = "model") -> str:
    """sha256 of the config and weights of a folder, whatever it is called; of a hub id, of its name and commit.

    With the role "scorer" it may be an adapter, whose own weights and settings count, and its base.
    """
    base = adapter_base(name) if role == "scorer" else None
    arguments = source_arguments(name, role=role)
    source = arguments["pretrained_model_name_or_path"]
    if os.path.isdir(source):
        patterns = WEIGHTS if base is None else (*WEIGHTS, ADAPTER)
        paths = sorted(path for pattern in patterns for path in Path(source).glob(pattern))
        with ThreadPoolExecutor(READERS) as pool:  # hashing releases the interpreter's lock
            parts = [[path.name, digest] for path, digest in zip(paths, pool.map(_digest, paths), strict=True)]
    else:
        settings = file_of(name, ADAPTER) if base is not None else None
        parts = [[source, str(extract_commit_hash(settings, None)) if settings else _commit(arguments)]]
    if base is not None:
        parts.append(["base", fingerprint(base)])
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _commit(arguments: dict) -> str:
    """The commit of the hub's files that from_pretrained takes."""
    config, _ = PretrainedConfig.get_config_dict(**arguments)
    return str(config.get("_commit_hash") or arguments.get("revision"))
