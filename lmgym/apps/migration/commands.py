"""A command of lmgym that another library's settings become, and lines on what has no equivalent."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lmgym.apps.migration.trl_scripts import Called, Code, Loaded
from lmgym.errors import one_line

LONGEST = 1000  # characters of a remark


@dataclass
class Translation:
    """A command as flags by name, what the user must fill in, and lines on what has no equivalent."""

    command: str
    """a word of `lmgym train`, perhaps with an experiment; with another `program` its first words"""
    flags: dict[str, Any] = field(default_factory=dict)
    asked: dict[str, str] = field(default_factory=dict)
    """flags, or EXPERIMENT.py, whose value the file does not tell, with what is known of it"""
    lines: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    """commands that make what this one reads"""
    program: str = "lmgym train"

    def ask(self, flag: str, why: str) -> None:
        """Leaves the value of a flag to the user."""
        self.flags.pop(flag, None)
        self.asked[flag] = why

    @property
    def words(self) -> list[str]:
        """The flags with their values, without those to fill in."""
        return [word for name, value in self._told.items() for word in (f"--{name}", as_word(value))]

    @property
    def _told(self) -> dict[str, Any]:
        return {name: value for name, value in self.flags.items() if name not in self.asked}

    @property
    def remarks(self) -> list[str]:
        """A line on each value to fill in and on each setting without an equivalent."""
        remarks = [*(f"fill in {placeholder(flag)}: {why}" for flag, why in self.asked.items()), *self.lines]
        return [one_line(remark, LONGEST) for remark in dict.fromkeys(remarks)]

    def __str__(self) -> str:
        """The command, a flag a line; what is to be filled in goes first, as a name in capitals."""
        flags = {flag: placeholder(flag) for flag in self.asked if not flag.endswith(".py")} | self._told
        lines = [f"--{name} {shlex.quote(as_word(value))}" for name, value in flags.items()]
        return "\n".join([*self.before, " \\\n    ".join([f"{self.program} {self.command}", *lines])])


def placeholder(flag: str) -> str:
    """The word in place of a value to fill in."""
    return flag if flag.endswith(".py") else flag.upper()


def display(value: Any) -> str:
    """A value in a line."""
    match value:
        case Code():
            return str(value)
        case Called():
            return f"{value.name}(...)"
        case Loaded():
            return f"load_dataset({', '.join(map(display, (value.name, *value.part)))})"
        case list():
            return f"[{', '.join(map(display, value))}]"
        case Mapping():
            return "{...}"
    return one_line(str(value), 60)


def holds_code(value: Any) -> bool:
    """True for a value that only the script knows, or with such a part."""
    return any(map(holds_code, value)) if isinstance(value, list) else isinstance(value, Code | Called | Loaded)


def as_word(value: Any) -> str:
    """A value as a flag's word."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)
