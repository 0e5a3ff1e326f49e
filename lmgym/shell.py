"""Commands that are printed: words as a shell reads them, and paths as one would type them."""

import os
import shlex
from contextlib import suppress

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
