"""Model sources: folders and hub ids. Nothing in them is executed unless a pinned commit is trusted.

A hub id may name a commit, branch or tag: `owner/name@REVISION`.
"""

import json
import os
import re
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from huggingface_hub import constants

from lmgym.errors import InputError, found_from, shown, shown_path
from lmgym.shell import command

COMMIT = re.compile(r"[0-9a-f]{40}")
SERVED = re.compile("(vllm|openai|anthropic):.")
"""how the spec of a served model begins (lmgym/generation/model_specs.py); no hub id does"""
PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")
ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def resolve_source(name: str, role: str = "model") -> str:
    """A folder's absolute path, which is right in every working directory, or a hub id.

    Raises InputError for a path that is not a model folder; a scorer may also be the folder of an adapter.
    """
    name = str(name)
    refuse_served(name)
    elsewhere = "" if os.path.exists(name) else found_from(name)
    looks_local = elsewhere or os.path.exists(name) or name.startswith((".", "/", "~")) or name.count("/") > 1
    if not looks_local:
        return name
    path = Path(os.path.abspath(os.path.expanduser(name)))
    if not os.path.isdir(path):
        found = "is a file" if os.path.exists(path) else "does not exist"
        needed = f"a Hugging Face folder (with config.json) or a hub id{elsewhere}"
        raise InputError(f"{role} {shown_path(name)} {found}; needed: {needed}")
    if not (path / "config.json").is_file() and not (role == "scorer" and (path / ADAPTER).is_file()):
        files = ", ".join(sorted(p.name for p in path.iterdir())[:6]) or "nothing"
        hint = next((f"; a model lies in {p.parent}" for p in sorted(path.glob("*/config.json"))), "")
        if (path / ADAPTER).is_file():
            merge = command("lmgym", "merge", shown_path(name))
            hint = f"; it is an adapter without its base: {merge} makes a model of it"
        raise InputError(
            f"{role} {shown_path(name)} is not a model folder: found {files}; needed: config.json and weights{hint}"
        )
    return str(path)


def refuse_served(name: str, needs: str = "weights") -> None:
    """Raises InputError for the spec of a served model, where its weights are needed, or its log-probabilities."""
    if SERVED.match(name) and not os.path.exists(name):
        raise InputError(
            f"{shown(name)} is a served model, which gives no {needs} here; needed: a folder with config.json, or a "
            "hub id, which is loaded in this process"
        )


def base_of_adapter(name: str) -> str | None:
    """The model below an adapter's folder; None for another folder, and for a hub id.

    Raises InputError for an adapter that names no model.
    """
    path = Path(os.path.expanduser(name))
    if (path / "config.json").is_file() or not (path / ADAPTER).is_file():
        return None
    try:
        base = json.loads((path / ADAPTER).read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (ValueError, AttributeError):
        base = None
    if not isinstance(base, str):
        raise InputError(f"{shown_path(path / ADAPTER)} names no model; needed: base_model_name_or_path, as of peft")
    return base


def source_arguments(name: str, trust_remote_code: bool = False, role: str = "model") -> dict[str, Any]:
    """Arguments of from_pretrained for a folder or `owner/name[@revision]`.

    Raises InputError for `trust_remote_code` with a folder, or with a hub id without a commit: their code can change.
    """
    from lmgym.runs.tracking import adopt_original_token_names

    source = resolve_source(name, role)
    local = os.path.exists(source)
    source, _, revision = (source, "", "") if local else source.partition("@")
    if trust_remote_code and not COMMIT.fullmatch(revision):
        found = "a folder" if local else f"revision {shown(revision)}" if revision else "no revision"
        raise InputError(
            f"--trust_remote_code executes code that comes with the model: found {found}; needed: a hub id with the "
            f"commit that you have read, {shown_path(source) if not local else 'owner/name'}@ and 40 hex digits"
        )
    pinned: dict[str, Any] = {"revision": revision} if revision else {}
    adopt_original_token_names()  # before the libraries below ask for the token
    if not local and not hub_has_address():
        pinned["local_files_only"] = True
    # an explicit False: without it, transformers would ask at the terminal
    return {"pretrained_model_name_or_path": source, "trust_remote_code": trust_remote_code, **pinned}


def no_folder_hint(name: str) -> str:
    """An addition to the hub's error for a name that may have been meant as a folder; empty if it exists."""
    return "" if os.path.exists(name) else f"; and no folder {shown_path(Path(name).absolute())} is here"


def hub_has_address() -> bool:
    """True if the hub's host name resolves, or a proxy does that.

    Without a network, huggingface_hub 2.4 retries for 23 seconds a file, also for files in its cache.
    """
    from urllib.request import getproxies

    if getproxies():
        return True
    try:
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, None)
    except OSError:
        return False
    return True


def refuse_pickles(name: str) -> None:
    """Raises InputError for a folder whose weights, or whose adapter's, are only pickles: loading one executes it."""
    folder = Path(name)
    if not os.path.isdir(folder):
        return
    found, needed = [], "model.safetensors"
    if not any(folder.glob("*.safetensors")):
        found = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    # transformers loads an adapter that lies in a model's folder
    if (folder / ADAPTER).is_file() and not (folder / ADAPTER_WEIGHTS).is_file():
        found, needed = sorted(path.name for path in folder.glob("adapter_model*.bin")) or found, ADAPTER_WEIGHTS
    if found:
        raise InputError(
            f"{shown_path(name)} has its weights as {found[0]} only, a pickle, and loading that executes its code; "
            f"needed: {needed}; if you trust it, write one with model.save_pretrained of transformers"
        )
