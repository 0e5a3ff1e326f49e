"""Readers of a judge's text: a verdict, the next speaker's name, and the answer that a debater chooses."""

import math
import re
from collections.abc import Sequence

from lmgym.apps.debate.formats import DEBATERS, FIRST
from lmgym.apps.debate.transcript import Speech, Verdict

NAMES = re.compile("|".join(DEBATERS), re.IGNORECASE)
STATED = re.compile(rf"({'|'.join(DEBATERS)})\s*\|\s*([0-9]+(?:\.[0-9]*)?(?:e-?[0-9]+)?)\s*%", re.IGNORECASE)
CHOICE = re.compile(r"\b([12])\b")


def read_verdict(text: str) -> Verdict:
    """The verdict of `Debater_A | 91%`, or of a text that names one debater only: probability 1.

    Of several, the last counts. A text that names nobody, or both, or a percentage over 100, is not readable.
    """
    stated = [(name, float(percent)) for name, percent in STATED.findall(text)]
    if stated:
        name, percent = stated[-1]
        if math.isfinite(percent) and percent <= 100:
            return Verdict(_p_first(name, percent / 100), text)
    names = {name.lower() for name in NAMES.findall(text)}
    if len(names) != 1 or stated:
        return Verdict(0.5, text, readable=False)
    return Verdict(_p_first(names.pop(), 1.0), text)


def write_verdict(p_first: float) -> str:
    """The text form of a probability, which `read_verdict` reads: `Debater_A | 91%`."""
    name, p = (DEBATERS[0], p_first) if p_first >= 0.5 else (DEBATERS[1], 1 - p_first)
    return f"{name} | {float(100 * p)!r}%"


def read_pick(text: str, speeches: Sequence[Speech]) -> str:
    """The debater whom the judge names first; without a name, the one who has spoken less, Debater_A on a tie."""
    if match := NAMES.search(text):
        return next(name for name in DEBATERS if name.lower() == match.group().lower())
    spoken = [speech.speaker for speech in speeches if speech.kind == "speech"]
    return min(DEBATERS, key=spoken.count)


def read_position(text: str) -> int | None:
    """The index of the chosen option, of a text with 1 or 2; None for a text with neither or both."""
    numbers = set(CHOICE.findall(text))
    return int(numbers.pop()) - 1 if len(numbers) == 1 else None


def _p_first(name: str, p: float) -> float:
    return p if name.lower() == FIRST.lower() else 1 - p
