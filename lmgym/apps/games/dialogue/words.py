"""English words with three related words and a clue each, written for these games: words.txt has them.

No clue has its word, a related word or a variant of one in it (tests/unit/apps/games/dialogue/test_words.py).
"""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

LEVELS = ("common", "less_common")


@dataclass(frozen=True)
class Word:
    """A word with what players say about it."""

    text: str
    related: tuple[str, ...]
    """that a clue may not have either"""
    clue: str
    level: str
    """one of LEVELS"""


@cache
def all_words() -> dict[str, Word]:
    """All words by text."""
    found = {}
    for line in files("lmgym.apps.games.dialogue").joinpath("words.txt").read_text(encoding="utf-8").splitlines():
        level, text, related, clue = line.split(" | ")
        found[text] = Word(text, tuple(related.split()), clue, level)
    return found


@cache
def words_of(level: str, letters: int | None = None) -> tuple[Word, ...]:
    """The words of a level, or those of so many letters."""
    return tuple(w for w in all_words().values() if w.level == level and letters in (None, len(w.text)))
