"""The entries of a YAML file of NYU's debate project, and the flags of its scripts. The file is read, never run."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from lmgym.apps.migration.commands import display
from lmgym.apps.migration.launches import NUMBER, flat, plain, read_config, settings
from lmgym.errors import InputError, did_you_mean, listed, one_line, regular, shown, shown_path
from lmgym.shell import command

LARGEST = 2_000_000  # bytes: 5 times the largest of the project's files
NEEDED = "a YAML file of NYU's debate project, with named entries"
MOST = 1e15
"""whole numbers up to this are floats without loss"""
KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
Value = TypeVar("Value", bool, int, float, str)
Choice = TypeVar("Choice")


@dataclass(frozen=True)
class Entry:
    """A named entry of a file, and the flags that its script was launched with."""

    file: Path
    name: str
    values: Mapping[str, Any]
    flags: Mapping[str, Any]


class Settings:
    """Settings by their dotted names, each of which is taken once; what is left has no equivalent."""

    def __init__(self, values: Mapping[str, Any], of: str) -> None:
        self.left = {name: value for name, value in flat(values).items() if value is not None}
        self.of = of
        """whose settings, for messages"""

    def take(self, name: str, default: Value) -> Value:
        """A setting of the default's type, or the default. Raises InputError for a value of another type."""
        return default if (value := self.find(name, type(default))) is None else value

    def find(self, name: str, kind: type[Value]) -> Value | None:
        """A setting of a type, None if there is none. Raises InputError for a value of another type."""
        value: Any = self.left.pop(name, None)
        if kind in (int, float) and isinstance(value, str) and NUMBER.fullmatch(value):  # quoted, or 1e-5 of YAML
            value = plain(value)
        if kind is float and type(value) is int and abs(value) < MOST:
            value = float(value)
        if value is None or (type(value) is kind and not (isinstance(value, float) and not math.isfinite(value))):
            return value
        raise InputError(f"{shown(self.of)}: {name}={display(value)}; needed: {KINDS[kind]}")

    def one_of(self, name: str, choices: Mapping[str, Choice], default: str) -> Choice:
        """The choice that a word of theirs names, in any case. Raises InputError for another word."""
        word = self.take(name, default).lower()
        if word not in choices:
            raise InputError(f"{shown(self.of)}: {name}={shown(word)}; needed: one of {listed(choices, 20)}")
        return choices[word]


def read_entry(file: Path, words: Sequence[str]) -> Entry | list[str]:
    """The entry that the words behind FILE name, or the only one; the names of all where none of several is named.

    Raises InputError for a file that is none of the project's, and for an entry that it does not have.
    """
    entries = _read_entries(file)
    named = words[0] if words and not words[0].startswith("-") else None
    flags = settings(words[1:] if named else words)
    named = named or flags.pop("configuration", None)
    if named is None and len(entries) > 1:
        return list(entries)
    name = next(iter(entries)) if named is None else str(named)
    if name not in entries:
        suggestion = did_you_mean(name, entries)
        raise InputError(
            f"{shown_path(file)} has no entry {shown(name)}; {suggestion}its entries: {listed(entries, 99)}"
        )
    values = entries[name]
    if not isinstance(values, Mapping):
        raise InputError(f"{shown_path(file)}: entry {shown(name)} is {display(values)}; needed: names and values")
    return Entry(file, name, values, flags)


def file_name(entry: Entry) -> str:
    """The name of the Python file that an entry becomes."""
    return f"{re.sub(r'[^a-z0-9]+', '_', entry.name.lower()).strip('_')[:60] or 'experiment'}.py"


def transcripts_at(path: str) -> str:
    """The path of a run's transcripts: a time alone is that of a run in the project's own folder."""
    return path if "/" in path else f"outputs/transcripts/{path}"


def list_entries(file: Path, names: Sequence[str]) -> list[str]:
    """The command for each entry of a file."""
    return [command("lmgym", "from", "nyu", str(file), name) for name in names]


def _read_entries(file: Path) -> dict[str, Any]:
    name = shown_path(file)
    try:
        if (size := regular(file).stat().st_size) > LARGEST:
            raise InputError(f"{name} has {size:,} bytes; needed: {NEEDED}, of at most {LARGEST:,}")
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{name}: {one_line(str(error))}; needed: {NEEDED}") from error
    if file.suffix not in (".yaml", ".yml"):
        raise InputError(f"{name} is no YAML file, by its name; needed: {NEEDED}")
    entries = read_config(text, name)
    if not entries or not any(isinstance(entry, Mapping) for entry in entries.values()):
        raise InputError(f"{name} has no entry; needed: {NEEDED}")
    return entries
