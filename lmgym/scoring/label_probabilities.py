"""P of each of a few labels, such as grades or names, from the likeliest tokens at each place of a model's reply.

Design decisions:
- A label may be several tokens. Where tokenizers write 10 as 1 and 0, the probability of "1" belongs to both grades: it
  is `pending`, and is divided by the tokens that follow, if the reply goes that way or a model can be asked to go on
  from there. A tokenizer with a token 10 is recognised by it among the likeliest tokens.
- A verdict is the last label in the asked form, `[[7]]`, behind any thoughts, or an answer that is nothing but a label.
  Its probabilities count if the model answers at once: behind words of its own they only repeat what these say. An
  answer that was cut, or without the form, is no verdict.
- A judge of names answers without a form. It is read at the first place at which labels have ENOUGH of the probability,
  or else where they have most.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from lmgym.generation.protocol import Completion, LikelyTokens

ENOUGH = 0.1
FORM = re.compile(r"\[\[[\s*_`]*(?P<label>[^\[\]]*?)[\s*_`]*\]\]")
ALONE = re.compile(r"[^\w-]*(?P<label>\w+)\W*")
CUT, WITHHELD, NO_FORM = "cut by the limit of tokens", "withheld by the server", "without a verdict in the asked form"
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
    thought: str = ""
    """what the model wrote to itself before"""
    fault: str = ""
    """why there is no verdict: CUT, WITHHELD or NO_FORM"""

    @property
    def total(self) -> float:
        """The probability of all labels together."""
        return sum(self.masses.values()) + sum(self.pending.values())


def read_reply(reply: Completion, labels: Sequence[str]) -> Reading:
    """The reading of a whole reply, by the form in which a verdict was asked for."""
    if reply.withheld:
        return Reading(reply.withheld, fault=WITHHELD)
    answer, thought = reply.answer, reply.thought
    if reply.finish_reason == "length":
        return Reading(answer, thought=thought, fault=CUT)
    if not read_written(answer, labels):
        return Reading(answer, thought=thought, fault=NO_FORM)
    said = "".join(place.token for place in reply.likely)
    found = _last_form(said)
    if thought or found is None or re.search(r"\w", said[: found.start()]):
        return Reading(answer, thought=thought)
    return _read_on(answer, reply.likely, _place_at(reply.likely, found.start("label")), labels)


def read_likely(text: str, likely: Sequence[LikelyTokens], labels: Sequence[str]) -> Reading:
    """The reading of a reply without a form, with the likeliest tokens at each of its places."""
    said, most, at = "", 0.0, 0
    for number, place in enumerate(likely):
        total = _read_place(text, said, place.logprobs, labels).total
        if total > most:
            most, at = total, number
        if total >= ENOUGH:
            break
        said += place.token
    return _read_on(text, likely, at, labels) if most else Reading(text)


def _read_on(text: str, likely: Sequence[LikelyTokens], at: int, labels: Sequence[str]) -> Reading:
    """The reading of a label that begins at a place, by what follows there too."""
    before = "".join(place.token for place in likely[:at])
    found = _read_place(text, before, likely[at].logprobs, labels)
    masses, pending = dict(found.masses), dict(found.pending)
    word = _last_word(before + likely[at].token)[0]
    for _, place in pairwise(likely[at:]):  # the reply itself may go on from a shared beginning
        if word not in pending:
            break
        further = read_further(word, pending.pop(word), place.logprobs, labels)
        masses = added(masses, further.masses)
        pending |= further.pending
        word += _begun(place.token)
    return Reading(text, masses, pending)


def _place_at(likely: Sequence[LikelyTokens], offset: int) -> int:
    """The place whose token has the character at this offset of all tokens together."""
    end = 0
    for number, place in enumerate(likely):
        end += len(place.token)
        if end > offset:
            return number
    raise AssertionError("an offset within the tokens")


def _last_form(text: str) -> re.Match[str] | None:
    """The last label in double brackets, or else the only word of a text."""
    return next(reversed(list(FORM.finditer(text))), None) or ALONE.fullmatch(text)


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


def read_written(answer: str, labels: Sequence[str]) -> str:
    """The label that an answer, without its thoughts, gives as its verdict; empty if it gives none of them.

    The last one in double brackets counts, and no other if that is none of the labels.
    """
    found = _last_form(answer)
    by_word = {label.casefold(): label for label in labels}
    return by_word.get(found["label"].strip().casefold(), "") if found else ""


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
