"""`clem register model|key`: an entry of model_registry.json, or of key.json, by values that are typed."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmgym.apps.playpen.registries.keys import KEY_FILE, VARIABLES, find_key_file, read_keys
from lmgym.apps.playpen.registries.models import CONFIG_KEYS, KEYS, REGISTRY, check_backend
from lmgym.apps.playpen.registries.specs import Spec, read_entries, refuse_misspelt
from lmgym.console import say
from lmgym.errors import InputError, did_you_mean, listed, shown
from lmgym.origin import origin_of
from lmgym.runs.files import write_text

KEY_FIELDS = frozenset({"api_key", "base_url", "organisation", "organization"})


def register_model(name: str, text: str, reset: bool) -> None:
    """Adds an entry to model_registry.json of the current folder, or changes values of the one of this name.

    A value of `model_config` is given by its own name. Raises InputError for values that are none, a misspelt name, and
    an entry without a backend.
    """
    path = Path.cwd() / REGISTRY
    entries, _ = read_entries(path) if path.exists() else ([], "")
    former: dict[str, Any] = next((entry for entry in entries if entry.get("model_name") == name), {})
    values = {key: _plain(value) for key, value in read_values(text).items()}
    refuse_misspelt(Path("-v"), text, values, {*KEYS, *CONFIG_KEYS})
    config = {key: values.pop(key) for key in [*values] if key in CONFIG_KEYS}
    entry = {"model_name": name, **({} if reset else former), **values}
    if config:
        entry["model_config"] = {**(entry.get("model_config") or {}), **config}
    check_backend(Spec(entry))
    if former:
        entries[entries.index(former)] = entry
    else:
        entries.insert(0, entry)
    write_text(path, json.dumps(entries, indent=2, ensure_ascii=False) + "\n")
    say(f"{path}: {Spec(entry, origin_of(path))}")


def register_key(backend: str, text: str, reset: bool, in_current_folder: bool) -> None:
    """Adds a backend's entry to key.json, or changes values of it; its file is readable by its owner alone.

    Raises InputError for values that are none, and for a backend or field that does not exist.
    """
    if backend not in VARIABLES:
        hint = did_you_mean(backend, VARIABLES)
        raise InputError(
            f"there is no backend {shown(backend)} with a key; {hint}needed: one of {listed(VARIABLES, 20)}"
        )
    values = read_values(text)
    if unknown := [name for name in values if name not in KEY_FIELDS]:
        raise InputError(f"a key has no {shown(unknown[0])}; needed: {', '.join(sorted(KEY_FIELDS))}")
    here = Path.cwd() / KEY_FILE
    path = here if in_current_folder else find_key_file() or here
    entries = {name: dict(entry) for name, entry in read_keys(path if path.is_file() else None).items()}
    entries[backend] = {**({} if reset else entries.get(backend, {})), **values}
    path.touch(mode=0o600)
    os.chmod(path, 0o600)  # before the key is in it
    path.write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
    say(f"{path}: {backend} has {', '.join(sorted(entries[backend]))}")


def read_values(text: str) -> Mapping[str, str]:
    """KEY=VALUE,... as an object. Raises InputError, without the text, which may hold a key."""
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if not pairs or not all(name.strip() and equals for name, equals, _ in pairs):
        raise InputError("-v has no values of the form KEY=VALUE,KEY=VALUE; needed: such as -v api_key=abc")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _plain(value: str) -> Any:
    """True and false as such; anything else as text."""
    return {"true": True, "false": False}.get(value.lower(), value)
