"""Commands that are printed for the user: words as a shell reads them, and flags out of a run's own settings."""

import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from lmgym.config import meanings
from lmgym.runs.flags import flatten
from lmgym.runs.launching import config_of
from lmgym.runs.paths import PATHS

UNSAFE_STARTS = ("-", "~")
"""of a path: a command would take it for a flag, or for a home"""


def command(*words: object) -> str:
    """The words as a command line that a shell reads."""
    return " ".join(quote(str(word)) for word in words)


def quote(word: str) -> str:
    """A word as the shell reads it, on one line and without control characters, for which bash and zsh have $'...'."""
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(map(_escaped, word)) + "'"


def _escaped(character: str) -> str:
    if character in "'\\":
        return f"\\{character}"
    code = ord(character)
    return character if character.isprintable() else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def relative(path: object) -> str:
    """A path as one would type it here; what is no absolute path stays."""
    text = str(path)
    if os.path.isabs(text):
        with suppress(OSError, ValueError):
            inside = os.path.relpath(text)
            if inside == ".." or inside.startswith(f"..{os.sep}"):
                return text
            is_plain = not inside.startswith(UNSAFE_STARTS) and "=" not in inside.split(os.sep)[0]
            return inside if is_plain else os.path.join(".", inside)
    return text


def as_typed(setting: str, value: object) -> object:
    """The value of a setting as one would type it here: PATH, or a list such as NAME=PATH,NAME=PATH#HOW, with relative
    paths.
    """
    if setting not in PATHS or not isinstance(value, str):
        return value
    return ",".join(map(_item_as_typed, value.split(",")))


def _item_as_typed(item: str) -> str:
    name, equals, path = ("", "", item) if os.path.isabs(item) else item.partition("=")
    return f"{name}{equals}{relative(path)}" if equals else relative(item)


def row_flags(settings: Mapping[str, Any], word: str, next_word: str) -> list[str]:
    """The flags by which `lmgym train NEXT_WORD` reads the rows that a run of `lmgym train WORD` has read.

    Each setting that says something of the rows is taken under the name that it has there; those with their default
    value, and those that the other stage does not have, are left out.
    """
    own, other = config_of(word), config_of(next_word)
    names, defaults, there = meanings(own), flatten(own), flatten(other)
    words: list[str] = []
    for meaning, flag in meanings(other).items():
        name = names.get(meaning, "")
        value = settings.get(name)
        if value is not None and (meaning == "rows" or value not in (defaults.get(name), there[flag])):
            words += [f"--{flag}", str(as_typed(name, value))]
    return words
