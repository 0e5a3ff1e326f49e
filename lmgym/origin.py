"""Where a value came from, and what it may therefore do.

What names code, an address or a key's destination carries its origin: the user's words, the user's own environment and
configuration, lmgym itself, or a file that was opened. What a file names is not imported, asked or given a key until
the user names it too; a refusal says with which words. Files of one folder are one origin.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from lmgym.errors import InputError, shown_path

SCHEME = re.compile(r"(?:^|[,=])\s*[a-z][a-z0-9_+.-]*:\S")
"""how an address, a served model, a judge, and whatever else is no path begins, alone or in a list of `name=WORDS`"""
PYTHON = re.compile(r"\.py\b")


@dataclass(frozen=True)
class Origin:
    """The source of a value, and the folder of the file that it is. Without a folder, it is the user's or lmgym's."""

    name: str
    folder: Path | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def is_file(self) -> bool:
        """True for a file that was opened, which anybody may have written."""
        return self.folder is not None


TYPED = Origin("the command line")
ENVIRONMENT = Origin("the environment")
PACKAGED = Origin("packaged")


def origin_of(file: Path | str) -> Origin:
    """The origin of what stands in a file."""
    return Origin(str(file), Path(file).expanduser().resolve().parent)


def may_ask(address: Origin, key: Origin | None = None) -> bool:
    """True for an address of the user's or lmgym's, and for one of a file in the folder that the key is from."""
    return not address.is_file or (key is not None and key.folder == address.folder)


def names_code_or_address(value: str) -> bool:
    """True for words that could be a Python file, a server, or a scorer of another kind than a folder or hub id."""
    return bool(PYTHON.search(value) or SCHEME.search(value))


def refuse(origin: Origin, named: str, needed: str) -> NoReturn:
    """Raises InputError for what a file names; `needed` has the words with which the user names it."""
    raise InputError(f"{shown_path(origin)} names {named}; needed, {needed}")
