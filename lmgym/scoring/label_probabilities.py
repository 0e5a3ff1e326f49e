"""P of each of a few labels, such as grades or names, from the likeliest tokens at each place of a model's reply.

Design decisions:
- A label may be several tokens. Where tokenizers write 10 as 1 and 0, the probability of "1" belongs to both grades: it
  is `pending`, and is divided by the tokens that follow, if the reply goes that way or a model can be asked to go on
  from there. A tokenizer with a token 10 is recognised by it among the likeliest tokens.
- A model may write some words first. The answer is read at the first place at which labels have ENOUGH of the
  probability, or else where they have most.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from lmgym.generation.protocol import LikelyTokens

ENOUGH = 0.1
WORD = re.compile(r"(\w+)(\W*)\Z")
BEGINNING = re.compile(r"\w*")


@dataclass(frozen=True)
class Reading:
    """Probabilities of labels, as far as one reply of a model tells them; nothing without log-probabilities."""

    text: str
    """the reply"""
    masses: Mapping[str, float] = field(default_factory=dict)
    """of labels"""
    pending: Mapping[str, float] = field(default_factory=dict)
    """of beginnings that several labels share"""

    @property
    def total(self) -> float:
        """The probability of all labels together."""
        return sum(self.masses.values()) + sum(self.pending.values())


def read_likely(text: str, likely: Sequence[LikelyTokens], labels: Sequence[str]) -> Reading:
    """The reading of a reply with the likeliest tokens at each of its places."""
    said, best, at, before = "", Reading(text), 0, ""
    for number, place in enumerate(likely):
        found = _read_place(text, said, place.logprobs, labels)
        if found.total > best.total:
            best, at, before = found, number, said
        if found.total >= ENOUGH:
            break
        said += place.token
    if not best.total:
        return best
    masses, pending = dict(best.masses), dict(best.pending)
    word = _last_word(before + likely[at].token)[0]
    for _, place in pairwise(likely[at:]):  # the reply itself may go on from a shared beginning
        if word not in pending:
            break
        further = read_further(word, pending.pop(word), place.logprobs, labels)
        masses = added(masses, further.masses)
        pending |= further.pending
        word += _begun(place.token)
    return Reading(text, masses, pending)


def read_further(begun: str, weight: float, logprobs: Mapping[str, float], labels: Sequence[str]) -> Reading:
    """The probability `weight` of a beginning divided among the labels that begin so, by the tokens that follow it.

    A beginning that is a label itself has what the longer ones do not have.
    """
    masses: dict[str, float] = {}
    pending: dict[str, float] = {}
    for token, logprob in logprobs.items():
        word = begun + _begun(token)
        fits = [label for label in labels if label.startswith(word)] if word != begun else []
        if len(fits) == 1:
            masses[fits[0]] = masses.get(fits[0], 0.0) + math.exp(logprob)
        elif fits:
            pending[word] = pending.get(word, 0.0) + math.exp(logprob)
    longer = sum(masses.values()) + sum(pending.values())
    if begun in labels:
        masses[begun] = max(0.0, 1 - longer)
        longer = max(longer, 1.0)
    if not longer:
        return Reading("")
    scale = weight / longer
    return Reading("", {k: p * scale for k, p in masses.items()}, {k: p * scale for k, p in pending.items()})


def read_written(text: str, labels: Sequence[str]) -> str:
    """The first label that a text has as a word of its own; empty without one."""
    ordered = sorted(labels, key=len, reverse=True)
    match = re.search(rf"(?<![\w.])(?:{'|'.join(map(re.escape, ordered))})(?![\w]|\.\d)", text)
    return match[0] if match else ""


def added(masses: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float]:
    """Sums by label."""
    return {label: masses.get(label, 0.0) + more.get(label, 0.0) for label in {**masses, **more}}


def _read_place(text: str, said: str, logprobs: Mapping[str, float], labels: Sequence[str]) -> Reading:
    masses: dict[str, float] = {}
    pending: dict[str, float] = {}
    words = {token: _last_word(said + token) for token in logprobs if token.strip()}
    whole = {word for word, _ in words.values()} & set(labels)
    for token, (word, closed) in words.items():
        fits = [label for label in labels if label == word or (not closed and word and label.startswith(word))]
        if len(fits) > 1 and word in labels and any(label in whole for label in fits if label != word):
            fits = [word]  # this tokenizer writes the longer label as one token
        p = math.exp(logprobs[token])
        if len(fits) == 1:
            masses[fits[0]] = masses.get(fits[0], 0.0) + p
        elif fits:
            pending[word] = pending.get(word, 0.0) + p
    return Reading(text, masses, pending)


def _begun(token: str) -> str:
    """The letters and digits that a token begins with."""
    match = BEGINNING.match(token)
    return match[0] if match else ""


def _last_word(text: str) -> tuple[str, bool]:
    """(the last word of a text, True if something follows it)."""
    match = WORD.search(text)
    return (match[1], bool(match[2])) if match else ("", False)
