"""Damaged model folders: errors of other libraries as one line that names the file at fault."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
from transformers import AutoConfig

from lmgym.errors import InputError, one_line, regular, shown, shown_path
from lmgym.models.sources import ADAPTER
from lmgym.runs.hub import explain

TOKEN_FILES = ("tokenizer_config.json", "special_tokens_map.json")
PROBES = [f"{letter * 64}!? {letter * 64}" for letter in "a0 \n.\u00e9"]


@contextlib.contextmanager
def readable(role: str, name: str, hint: str = "") -> Iterator[None]:
    """Turns any error of reading a model's files within a `with` into an InputError that names the file."""
    _refuse_pipes(name)
    try:
        yield
    except (InputError, MemoryError, torch.OutOfMemoryError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except StrictDataclassError as error:  # its second line names the field
        raise InputError(f"the config of {shown_path(name)} cannot be read: {one_line(str(error), 200)}") from error
    except BaseException as error:  # of transformers, peft, tokenizers, safetensors; a panic of Rust is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        if refusal := explain(error, name):  # the libraries' own words are of a wrong name, or of the connection
            raise InputError(f"no {role} loads from {shown_path(name)}: {refusal}{hint}") from error
        fault, first_line = find_damage(name), (str(error).strip().splitlines() or [""])[0].rstrip(".")
        if not fault:
            is_worded = isinstance(error, OSError | ValueError) or not isinstance(error, Exception)
            kind = "" if is_worded else f"{type(error).__name__}: "
            fault = f"{_suspect(role, name, error)}{kind}{one_line(first_line, 200)}{hint}"
        raise InputError(f"no {role} loads from {shown_path(name)}: {fault}") from error


def _refuse_pipes(name: str) -> None:
    """Raises InputError for a folder with a file that may never end, as libraries would wait for."""
    folder = Path(os.path.expanduser(name))
    for path in sorted(folder.iterdir()) if os.path.isdir(folder) else ():
        try:
            regular(path)
        except OSError as error:
            if not path.is_symlink():  # a broken link is an absent file
                found = f"{shown_path(path.name)} is {error.strerror}; needed: files"
                raise InputError(f"{shown_path(name)} is no model's folder: {found}") from error


def _suspect(role: str, name: str, error: BaseException) -> str:
    """The file of a folder that an error of no damaged file may come from; empty for hub ids."""
    if not os.path.isdir(os.path.expanduser(name)) or isinstance(error, OSError):
        return ""
    if not isinstance(error, Exception):  # only the tokenizers' library panics
        return "tokenizer.json: "
    files = {"tokenizer": "tokenizer_config.json", "model config": "config.json"}
    files |= dict.fromkeys(("adapter", "peft_model"), ADAPTER)
    return f"{files.get(role, 'config.json or its weights')}: "


def find_damage(name: str) -> str:
    """The first file in a folder that is damaged, and why; empty if none is, and for hub ids."""
    folder = Path(os.path.expanduser(name))
    if not os.path.isdir(folder):
        return ""
    paths = sorted(path for kind in ("json", "jinja", "safetensors") for path in folder.glob(f"*.{kind}"))
    return next(filter(None, map(_fault, paths)), "")


def refuse_failing_patterns(tokenizer) -> None:
    """Raises the panic of a tokenizer whose patterns backtrack without end, without its message on stderr."""
    stderr = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        for text in PROBES:
            try:
                tokenizer(text, verbose=False)
            except Exception as error:
                # the tokenizers' library has no class of its own; a vocabulary of some words has none for other texts
                if type(error) is not Exception:
                    raise
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def refuse_damaged_tokens(name: str) -> None:
    """Raises InputError for a special token of a folder's tokenizer that is neither a text nor one with settings."""
    for file in TOKEN_FILES:
        path = Path(os.path.expanduser(name)) / file
        if path.is_file() and (fault := _fault(path)):
            raise InputError(f"no tokenizer loads from {shown_path(name)}: {fault}")


def _fault(path: Path) -> str:
    """Why a file of a model cannot be used; empty if nothing is wrong with it."""
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, "pt"):
                return ""
        text = path.read_text(encoding="utf-8")
        if path.suffix != ".json":
            return ""
        content = json.loads(text)
    except SafetensorError as error:
        return f"{path.name} is not whole ({one_line(str(error), 120)})"
    except RecursionError:
        return f"{path.name} is nested too deeply"
    except (OSError, ValueError) as error:
        return f"{path.name} cannot be read ({one_line(str(error), 120)})"
    if not isinstance(content, dict):
        return f"{path.name} is {shown(content)}; needed: an object"
    if path.name in TOKEN_FILES:
        return next(filter(None, (_token_fault(path.name, *field) for field in content.items())), "")
    if path.name == "config.json":
        return _load_fault(path, lambda: AutoConfig.from_pretrained(path.parent, trust_remote_code=False))
    return _load_fault(path, lambda: Tokenizer.from_file(str(path))) if path.name == "tokenizer.json" else ""


def _token_fault(file: str, field: str, value: Any) -> str:
    if not field.endswith("_token") or field.startswith("add_") or value is None or isinstance(value, str):
        return ""
    if isinstance(value, dict) and isinstance(value.get("content"), str):
        return ""
    return f"{file}: {shown(field)} is {shown(value)}; needed: a text, or an object with its content"


def _load_fault(path: Path, load: Callable[[], object]) -> str:
    try:
        load()
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        return f"{path.name}: {one_line(str(error), 160)}"
    return ""
