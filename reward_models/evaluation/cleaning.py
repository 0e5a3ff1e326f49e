"""What a model says, made harmless for a terminal: whatever could drive it is shown rather than sent.

Each character is judged by itself, so a sequence that is split over chunks is cleaned as it is in one piece.
"""

import io
import unicodedata
from typing import IO

JOINERS = "\u200c\u200d"  # scripts and emoji need them; they move nothing
PICTURES = {0x7F: "\u2421"} | {code: chr(0x2400 + code) for code in range(0x20)}
# Cc: C0 and C1, escape and OSC begin with one; Cf: bidi marks, tags, what is not seen; Cs: halves of characters;
# Zl, Zp: lines where the screen expects none; Cn, Co: what a terminal may take for anything
DRIVING = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp", "Cn", "Co"))


def clean(text: str) -> str:
    """The text with every control, bidi and invisible character as a picture or `<U+202E>`; lines stay lines."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_shown, text))


def clean_line(text: str) -> str:
    """The same on one line, its line breaks as pictures too."""
    return clean(text).replace("\n", PICTURES[0x0A])


def bear_any_text(*streams: IO[str]) -> None:
    """Streams of an encoding that lacks a character show a question mark from now on, rather than fail."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _shown(character: str) -> str:
    if character == "\n" or character in JOINERS or unicodedata.category(character) not in DRIVING:
        return character
    if character == "\t":
        return "  "
    return PICTURES.get(ord(character)) or f"<U+{ord(character):04X}>"
