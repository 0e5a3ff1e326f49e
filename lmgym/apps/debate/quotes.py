"""Quotes: which of them stand in the page, and what the hearers of a speech read in their place.

Design decisions:
- Texts are compared as words: case, white space and `, . " '` do not count, so a quote begins and ends where words do.
- A quote that is not exact is looked up by edit distance, then by the similarity of windows of words (difflib), and is
  replaced by what the page says. Everything else becomes an <invalid_quote>.
- Tags of quotes that do not close are removed, and no text: what was meant is unknown. So are tags of invalid quotes,
  which are not the speaker's to give.
"""

import re
from bisect import bisect_left
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np

OPEN, CLOSE = "<quote>", "</quote>"
OPEN_INVALID, CLOSE_INVALID = "<invalid_quote>", "</invalid_quote>"
TAG = re.compile(r"</?(?:invalid_)?quote>")
QUOTED = re.compile(f"{OPEN}(.*?){CLOSE}", re.DOTALL)
ELLIPSIS = re.compile(r"\[?(?:\.\s?\.\s?\.+|…)\]?")
SET_ASIDE = str.maketrans("", "", ",.\"'“”‘’")
FEWEST_CHARACTERS = 10  # letters and spaces of a part of a quote; "at sa" is no quote
SIMILARITY, GOOD_SIMILARITY = 0.8, 0.9  # of difflib: the least, and one at which the search stops
MOST_WINDOWS = 16  # of words, those that share most words with the quote, that difflib compares

Status = Literal["exact", "fuzzy", "invalid"]


@dataclass(frozen=True)
class Quote:
    """A quote of a speech, with its place in the page."""

    text: str
    """as the hearers read it"""
    status: Status
    start: int = -1
    """of its first character in the page; -1: invalid"""
    end: int = -1

    @property
    def valid(self) -> bool:
        """True if the page has it, exactly or nearly."""
        return self.status != "invalid"


@dataclass(frozen=True)
class CheckedSpeech:
    """A speech as its hearers read it."""

    text: str
    quotes: tuple[Quote, ...] = ()
    unclosed: int = 0
    """tags that were removed, because they did not close or were not opened"""


@dataclass(frozen=True)
class QuoteRules:
    """The rules by which a text is a quote."""

    fewest_characters: int = FEWEST_CHARACTERS
    fuzzy: bool = True

    def check(self, speech: str, page: str) -> CheckedSpeech:
        """The speech with every quote as the page has it, or marked as invalid."""
        closed, unclosed = _close_tags(speech)
        words, quotes, pieces, place = index_page(page), [], [], 0
        for match in QUOTED.finditer(closed):
            quote = self.find(match[1], words)
            quotes.append(quote)
            pieces += [closed[place : match.start()], _tagged(quote)]
            place = match.end()
        return CheckedSpeech("".join([*pieces, closed[place:]]), tuple(quotes), unclosed)

    def find(self, text: str, page: "Page") -> Quote:
        """The quote in the page. Its parts between ellipses must all stand there, in their order."""
        text = text.strip()
        parts = [part for part in ELLIPSIS.split(text) if simplify(part)]
        if not parts or any(len(simplify(part)) < self.fewest_characters for part in parts):
            return Quote(text, "invalid")
        found: list[tuple[int, int, bool]] = []
        for part in parts:
            match = page.find(part, found[-1][1] if found else 0, self.fuzzy)
            if match is None:
                return Quote(text, "invalid")
            found.append(match)
        exact = all(part_exact for *_, part_exact in found)
        shown = text if exact else " ... ".join(" ".join(page.text[start:end].split()) for start, end, _ in found)
        return Quote(shown, "exact" if exact else "fuzzy", found[0][0], found[-1][1])


def simplify(text: str) -> str:
    """The text in words: lower case, single spaces, without `, . " '`."""
    return " ".join(text.translate(SET_ASIDE).casefold().split())


@dataclass(frozen=True)
class Page:
    """A text in words, with their places."""

    text: str
    joined: str
    """the words, with spaces between and around them"""
    starts: list[int]
    """of the words in `joined`"""
    spans: list[tuple[int, int]]
    """of the words in `text`"""
    codes: np.ndarray = field(repr=False)
    """`joined` as numbers"""

    def find(self, part: str, after: int, fuzzy: bool) -> tuple[int, int, bool] | None:
        """(start, end, whether exact) in the text of the first match from character `after` on; None without one."""
        words = simplify(part)
        first = bisect_left(self.spans, (after, 0))
        begin = self.starts[first] if first < len(self.starts) else len(self.joined)
        if (at := self.joined.find(f" {words} ", max(begin - 1, 0))) >= 0:
            return *self._span(at + 1, at + 1 + len(words)), True
        if not fuzzy:
            return None
        match = self._nearest(words, begin) or self._most_similar(words, first)
        return None if match is None else (*self._span(*match), False)

    def _span(self, start: int, end: int) -> tuple[int, int]:
        """The words that [start, end) of `joined` touches, as a span of the text."""
        first = max(bisect_left(self.starts, start + 1) - 1, 0)
        last = max(bisect_left(self.starts, end) - 1, first)
        return self.spans[first][0], self.spans[last][1]

    def _nearest(self, words: str, begin: int) -> tuple[int, int] | None:
        """[start, end) in `joined` of the nearest match by edit distance (Sellers 1980), if it is near enough.

        A tenth of the characters may differ, or 3, but never more than a fifth.
        """
        most = max(len(words) // 10, min(3, len(words) // 5))
        codes, page = _codes(words), self.codes[begin:]
        if not len(page):
            return None
        ends = _distances(codes, page)
        end = int(ends.argmin())
        if ends[end] > most:
            return None
        # from the end backwards, the same search gives the start
        reach = page[max(0, end - len(words) - most) : end][::-1]
        length = int(_distances(codes[::-1], reach, anchored=True).argmin())
        return begin + end - length, begin + end

    def _most_similar(self, words: str, first: int) -> tuple[int, int] | None:
        """[start, end) in `joined` of the window of as many words that difflib finds most similar, if it is enough."""
        wanted = words.split()
        known, own = set(wanted), self.joined.split()[first:]
        if len(own) < len(wanted):
            return None
        shared = np.concatenate([[0], np.cumsum([word in known for word in own])])
        counts = shared[len(wanted) :] - shared[: -len(wanted)]
        best, match = SIMILARITY, None
        for window in np.argsort(-counts, kind="stable")[:MOST_WINDOWS].tolist():
            candidate = " ".join(own[window : window + len(wanted)])
            ratio = SequenceMatcher(None, candidate, words, autojunk=False).ratio()
            if ratio >= best:
                start = self.starts[first + window]
                best, match = ratio, (start, start + len(candidate))
            if best >= GOOD_SIMILARITY:
                break
        return match


@lru_cache(maxsize=256)
def index_page(text: str) -> Page:
    """The words of a text; cached, because every speech of a round quotes the same page."""
    words, spans, starts, place = [], [], [], 1
    for match in re.finditer(r"\S+", text):
        if word := simplify(match.group()):
            words.append(word)
            spans.append(match.span())
            starts.append(place)
            place += len(word) + 1
    joined = f" {' '.join(words)} " if words else ""
    return Page(text, joined, starts, spans, _codes(joined))


def _close_tags(speech: str) -> tuple[str, int]:
    """The speech with pairs of quote tags alone, and how many others were removed, also those that a removal forms."""
    removed = 0
    while True:
        tags = list(TAG.finditer(speech))
        paired: set[int] = set()
        for number, (tag, following) in enumerate(pairwise(tags)):
            if tag.group() == OPEN and following.group() == CLOSE:
                paired |= {number, number + 1}
        strays = [tag for number, tag in enumerate(tags) if number not in paired]
        if not strays:
            return speech, removed
        removed += sum(tag.group() in (OPEN, CLOSE) for tag in strays)
        for tag in reversed(strays):
            speech = speech[: tag.start()] + speech[tag.end() :]


def _tagged(quote: Quote) -> str:
    return f"{OPEN}{quote.text}{CLOSE}" if quote.valid else f"{OPEN_INVALID}{quote.text}{CLOSE_INVALID}"


def _codes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)


def _distances(pattern: np.ndarray, text: np.ndarray, anchored: bool = False) -> np.ndarray:
    """[text + 1] edit distance of the pattern to the best part of the text that ends there.

    `anchored`: to the part from the beginning of the text.
    """
    places = np.arange(len(text) + 1, dtype=np.int32)
    row = places.copy() if anchored else np.zeros_like(places)
    for number, code in enumerate(pattern, 1):
        new = np.empty_like(row)
        new[0] = number
        np.minimum(row[1:] + 1, row[:-1] + (text != code), out=new[1:])
        row = np.minimum.accumulate(new - places) + places  # insertions, from the left on
    return row
