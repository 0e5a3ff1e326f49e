"""A command of lmgym that another library's settings become, and lines on what has no equivalent."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lmgym.apps.migration.trl_scripts import Called, Loaded
from lmgym.errors import one_line


@dataclass
class Translation:
    """A command as flags by name, and lines on what has no equivalent."""

    command: str
    flags: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    @property
    def words(self) -> list[str]:
        """The flags with their values."""
        return [word for name, value in self.flags.items() for word in (f"--{name}", _word(value))]

    def __str__(self) -> str:
        """The command, a flag a line."""
        flags = [f"--{name} {shlex.quote(_word(value))}" for name, value in self.flags.items()]
        return " \\\n    ".join([f"lmgym train {self.command}", *flags])


def display(value: Any) -> str:
    match value:
        case Called():
            return f"{value.name}(...)"
        case Loaded():
            return f"load_dataset({display(value.name)})"
        case list():
            return f"[{', '.join(map(display, value))}]"
        case Mapping():
            return "{...}"
    return one_line(str(value), 60)


def _word(value: Any) -> str:
    """A value as a flag's word."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)
