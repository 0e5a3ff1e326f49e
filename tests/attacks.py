"""Texts that would drive a terminal, and what of a text still does."""

import unicodedata

ATTACKS = {
    "colour": "\x1b[31mred\x1b[0m",
    "title": "\x1b]0;owned\x07",
    "link": "\x1b]8;;http://x\x1b\\here\x1b]8;;\x1b\\",
    "clipboard": "\x1b]52;c;YWJj\x07",
    "c1": "\x9b31m\x9d0;owned\x9c",
    "bidi": "abc\u202edef\u2066ghi\u200fjkl\u061c",
    "over": "good\r\x08\x08bad",
    "lines": "a\u2028b\u2029c\x0bd\x0ce\x85f",
    "nul and del": "a\x00b\x7fc",
    "tags": "a\U000e0041b\ufeffc\u00ad",
    "halves": "a\ud800b\udc9bc",
}


def drives(text: str) -> list[str]:
    """Characters that a terminal may act upon."""
    return [c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in "\n\u200c\u200d"]
