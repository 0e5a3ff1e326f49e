"""Arguments of the % commands: numbers, paths, names and settings. A mistake raises InputError with an example."""

import shlex
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from lmgym.errors import MOST_SCORE, InputError, nearest, one_line, shown
from lmgym.generation.protocol import Sampling
from lmgym.runs.flags import TRUTH

LONGEST_SETTINGS = 10_000  # characters after %set and %blend


def parse_int(word: str, example: str) -> int:
    """A whole number."""
    try:
        return int(word)
    except ValueError:
        raise InputError(f"found {shown(word)}; needed a whole number: {example}") from None


def parse_float(word: str, example: str) -> float:
    """A finite number, at most MOST_SCORE in size."""
    try:
        value = float(word)
    except ValueError:
        value = float("nan")
    if not abs(value) <= MOST_SCORE:
        raise InputError(f"found {shown(word)}; needed a number, at most {MOST_SCORE:,.0f} in size: {example}")
    return value


def parse_assignments(text: str, example: str) -> list[tuple[str, str]]:
    """(name, value) of each name=value."""
    try:  # shlex takes a minute for a megabyte
        pairs = [word.partition("=") for word in shlex.split(text)] if len(text) < LONGEST_SETTINGS else []
    except ValueError:
        pairs = []
    if not pairs or not all(name and equals for name, equals, _ in pairs):
        raise InputError(f"found {shown(text)}; needed name=value: {example}")
    return [(name, value) for name, _, value in pairs]


def parse_path(text: str) -> str:
    """A path, with quotes or without; empty if none is given."""
    return str(Path(text.strip().strip("'\"")).expanduser()) if text.strip() else ""


def parse_sampling(text: str, current: Sampling) -> Sampling:
    """The current settings with those of `temperature=0.9 top_p=.7 ...` replaced."""
    known = {field.name for field in fields(current)}
    changed = {}
    for name, word in parse_assignments(text, "%set temperature=0.9 top_p=.7"):
        if name not in known:
            raise InputError(f"unknown setting {one_line(name)}; did you mean {nearest(name, known, 0)}?")
        changed[name] = _parse_setting(name, word, getattr(current, name))
    return replace(current, **changed)


def _parse_setting(name: str, word: str, current: Any) -> Any:
    """The word as a value of the setting's type."""
    kind = type(current)
    if kind is tuple:
        return tuple(_unescape(part, f"{name}={word}") for part in word.split(",") if part)
    try:
        return TRUTH[word.lower()] if kind is bool else kind(word)
    except (ValueError, KeyError):
        raise InputError(f"{name}={one_line(word)}: needed {kind.__name__}") from None


def _unescape(text: str, setting: str) -> str:
    """Text with escapes such as `\\n` replaced; other characters of any script are kept."""
    try:
        return text.encode("latin-1", "backslashreplace").decode("unicode_escape")
    except UnicodeDecodeError:
        raise InputError(f"{one_line(setting)}: needed escapes such as \\n, or \\\\ for a backslash") from None
