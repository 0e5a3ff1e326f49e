"""A run's own settings as flags of another command, for those that are printed."""

import os
from collections.abc import Mapping
from typing import Any

from lmgym.config import meanings
from lmgym.runs.fields import flatten
from lmgym.runs.paths import PATHS
from lmgym.shell import relative


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


def row_flags(settings: Mapping[str, Any], own: object, other: object) -> list[str]:
    """The flags by which a command with the config `other` reads the rows that a run has read, with these settings of a
    config such as `own`.

    Each setting that says something of the rows is taken under the name that it has there; those with their default
    value, and those that the other command does not have, are left out.
    """
    names, defaults, there = meanings(own), flatten(own), flatten(other)
    words: list[str] = []
    for meaning, flag in meanings(other).items():
        name = names.get(meaning, "")
        value = settings.get(name)
        if value is not None and (meaning == "rows" or value not in (defaults.get(name), there[flag])):
            words += [f"--{flag}", str(as_typed(name, value))]
    return words
