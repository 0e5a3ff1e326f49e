"""LLM judges as scorers: grades by criteria, and comparisons in both orders.

Design decisions:
- A grade is the expectation over the probabilities of all grades, so that it has no ties and tells more than the grade
  that is written; G-Eval (Liu et al. 2023).
- A comparison is asked in both orders. P(a beats b) is the mean, from which a preference for a place cancels.
- A judge that compares scores several replies to a conversation by a knock-out: n - 1 comparisons, in rounds.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import final

import numpy as np

from lmgym.errors import InputError, shown
from lmgym.scoring.judge_prompts import NAMES, QUALITY, Criterion, Shown, comparing_prompt, grading_prompt
from lmgym.scoring.protocol import NoVerdict
from lmgym.scoring.verdicts import Verdict, Verdicts
from lmgym.text import Conversation, Reply, words_of

ONE = (Criterion("quality", QUALITY),)
SCALE = (1, 10)
MOST_CHARACTERS = 8000


@dataclass(frozen=True)
class Grade:
    """Expected grades of a reply by criterion, and the entropies of their distributions."""

    score: float
    """the weighted mean of the grades"""
    grades: dict[str, float]
    entropies: dict[str, float]
    """nats; 0 for a grade that was only written"""
    words: dict[str, str]
    """what the judge thought, and wrote with its grade; empty where it gave the grade alone"""


@final
class GradingJudge:
    """Grades each reply by each criterion; the score is the weighted mean of the grades, on the scale's own units."""

    def __init__(
        self,
        verdicts: Verdicts,
        criteria: Sequence[Criterion] = ONE,
        scale: tuple[int, int] = SCALE,
        most_characters: int = MOST_CHARACTERS,
    ) -> None:
        self.verdicts, self.criteria, self.scale, self.most_characters = verdicts, criteria, scale, most_characters
        self._cut: set[Conversation] = set()

    @property
    def cut(self) -> int:
        """Questions with a reply or a conversation that was too long to be shown whole."""
        return len(self._cut)

    def score(self, conversations: Sequence[Conversation], replies: Sequence[Reply]) -> np.ndarray:
        """float32 [replies]. Raises NoVerdict for a reply to which the model gives no grade."""
        return np.array([grade.score for grade in self.grade(conversations, replies)], dtype=np.float32)

    def announce(self, conversations: Sequence[Conversation], groups: Sequence[Sequence[Reply]]) -> None:
        """Says what grades of all replies may cost at most; a group of replies to each conversation."""
        asked = [
            self._asked(c, reply, criterion).prompt
            for c, group in zip(conversations, groups, strict=True)
            for reply in group
            for criterion in self.criteria
        ]
        self.verdicts.announce(asked, self._labels)

    @property
    def _labels(self) -> list[str]:
        return [str(grade) for grade in range(self.scale[0], self.scale[1] + 1)]

    def details(self, conversations: Sequence[Conversation], replies: Sequence[Reply]) -> list[dict[str, float | str]]:
        """Of each reply the grade of each criterion, its entropy, and the judge's words beside it."""
        return [
            {
                **grade.grades,
                **{f"{name} entropy": value for name, value in grade.entropies.items()},
                **{f"{name} reasons": words for name, words in grade.words.items() if words},
            }
            for grade in self.grade(conversations, replies, counted=False)
        ]

    def grade(
        self, conversations: Sequence[Conversation], replies: Sequence[Reply], counted: bool = True
    ) -> list[Grade]:
        """The grades of each reply, one question to the model for each criterion."""
        asked = [
            [self._asked(c, reply, criterion) for criterion in self.criteria]
            for c, reply in zip(conversations, replies, strict=True)
        ]
        self._cut |= {one.prompt for row in asked for one in row if one.is_cut}
        found = iter(_asked(self.verdicts, [one for row in asked for one in row], self._labels, counted))
        return [self._grade([next(found) for _ in self.criteria]) for _ in asked]

    def _asked(self, conversation: Conversation, reply: Reply, criterion: Criterion) -> Shown:
        reasons = self.verdicts.model.reasons
        return grading_prompt(conversation, reply, criterion, self.scale, self.most_characters, reasons)

    def _grade(self, verdicts: Sequence[Verdict]) -> Grade:
        values = np.arange(self.scale[0], self.scale[1] + 1)
        grades = {c.name: float(np.dot(v.p, values)) for c, v in zip(self.criteria, verdicts, strict=True)}
        weights = [criterion.weight for criterion in self.criteria]
        entropies = {c.name: v.entropy for c, v in zip(self.criteria, verdicts, strict=True)}
        words = {c.name: v.words for c, v in zip(self.criteria, verdicts, strict=True)}
        return Grade(float(np.average(list(grades.values()), weights=weights)), grades, entropies, words)


@dataclass(frozen=True)
class Comparison:
    """P that the first reply is better, asked in both orders."""

    shown_first: float
    """where it was shown first"""
    shown_second: float

    @property
    def p(self) -> float:
        """The mean of both orders."""
        return (self.shown_first + self.shown_second) / 2

    @property
    def flips(self) -> bool:
        """True if the winner is another one in the other order; of a tie in one order too."""
        return (self.shown_first - 0.5) * (self.shown_second - 0.5) <= 0 and self.shown_first != self.shown_second


@dataclass
class OrderBias:
    """Sums over the comparisons of a judge."""

    comparisons: int = 0
    flips: int = 0
    first: float = 0.0
    """sum over both orders of P of the reply that was shown first"""

    def add(self, one: Comparison) -> None:
        """Count a comparison."""
        self.comparisons += 1
        self.flips += one.flips
        self.first += one.shown_first + 1 - one.shown_second

    def __str__(self) -> str:
        """The share of flips and the mean P of the first place, in words."""
        n = max(1, self.comparisons)
        return (
            f"{self.comparisons:,} comparisons in both orders; the winner changes with the order in "
            f"{self.flips / n:.1%}, P of the reply that is shown first is {self.first / (2 * n):.3f} on average"
        )


@final
class ComparingJudge:
    """Compares replies to one conversation; as a scorer, by a knock-out among them."""

    def __init__(
        self, verdicts: Verdicts, criteria: Sequence[Criterion] = ONE, most_characters: int = MOST_CHARACTERS
    ) -> None:
        self.verdicts, self.criteria, self.most_characters = verdicts, criteria, most_characters
        self.order_bias, self._cut = OrderBias(), set[Conversation]()

    @property
    def cut(self) -> int:
        """Questions with a reply or a conversation that was too long to be shown whole."""
        return len(self._cut)

    def announce(self, conversations: Sequence[Conversation], groups: Sequence[Sequence[Reply]]) -> None:
        """Says what comparisons of all neighbours in a group may cost at most; a knock-out has as many matches."""
        asked = [
            self._asked(c, pair).prompt
            for c, group in zip(conversations, groups, strict=True)
            for a, b in pairwise(group)
            for pair in ((a, b), (b, a))
        ]
        self.verdicts.announce(asked, NAMES)

    def _asked(self, conversation: Conversation, pair: tuple[Reply, Reply]) -> Shown:
        reasons = self.verdicts.model.reasons
        return comparing_prompt(conversation, *pair, self.criteria, self.most_characters, reasons)

    def compare(
        self, conversations: Sequence[Conversation], firsts: Sequence[Reply], seconds: Sequence[Reply]
    ) -> list[Comparison]:
        """P that the first reply to each conversation is better than the second; two questions each.

        Raises NoVerdict for two replies between which the model does not choose.
        """
        orders = [
            self._asked(c, pair)
            for c, a, b in zip(conversations, firsts, seconds, strict=True)
            for pair in ((a, b), (b, a))
        ]
        self._cut |= {one.prompt for one in orders if one.is_cut}
        found = _asked(self.verdicts, orders, NAMES)
        comparisons = [Comparison(a.p[0], b.p[1]) for a, b in zip(found[::2], found[1::2], strict=True)]
        for comparison in comparisons:
            self.order_bias.add(comparison)
        return comparisons

    def score(self, conversations: Sequence[Conversation], replies: Sequence[Reply]) -> np.ndarray:
        """float32 [replies]: `score_groups` of the replies to each conversation.

        Raises InputError for a conversation with one reply.
        """
        places: dict[Conversation, list[int]] = {}
        for place, conversation in enumerate(conversations):
            places.setdefault(conversation, []).append(place)
        groups = [[replies[place] for place in of_one] for of_one in places.values()]
        found = np.zeros(len(replies), dtype=np.float32)
        for of_one, scores in zip(places.values(), self.score_groups(list(places), groups), strict=True):
            found[of_one] = scores
        return found

    def score_groups(
        self, conversations: Sequence[Conversation], groups: Sequence[Sequence[Reply]]
    ) -> list[list[float]]:
        """For each reply of a group, which answer one conversation: the round in which it played last, from 0, plus its
        P of winning there.

        So of two replies a and b the scores are P(a beats b) and P(b beats a), and of more the winner's is the highest.
        Equal replies are one. The bracket is drawn by a digest of the texts: the order of the replies does not matter.
        Raises InputError for a group of one reply.
        """
        if lonely := next((c for c, group in zip(conversations, groups, strict=True) if len(group) == 1), None):
            raise InputError(
                f"a judge that compares was given one reply to {shown(lonely.turns[-1].text if lonely.turns else '')}; "
                "needed: several replies to a conversation, or a judge that grades"
            )
        scores = self._knock_out(conversations, [{words_of(reply): reply for reply in group} for group in groups])
        return [[own[words_of(reply)] for reply in group] for own, group in zip(scores, groups, strict=True)]

    def _knock_out(
        self, conversations: Sequence[Conversation], groups: Sequence[Mapping[str, Reply]]
    ) -> list[dict[str, float]]:
        """Scores of the distinct replies of each group, by their words."""
        scores = [dict.fromkeys(group, 0.5) for group in groups]
        left = [sorted(group, key=partial(_draw, c)) for c, group in zip(conversations, groups, strict=True)]
        played = 0
        while matches := [(i, a, b) for i, words in enumerate(left) for a, b in list(pairwise(words))[::2]]:
            firsts, seconds = [groups[i][a] for i, a, _ in matches], [groups[i][b] for i, _, b in matches]
            found = self.compare([conversations[i] for i, _, _ in matches], firsts, seconds)
            for (i, a, b), comparison in zip(matches, found, strict=True):
                scores[i][a], scores[i][b] = played + comparison.p, played + 1 - comparison.p
                left[i].remove(b if comparison.p >= 0.5 else a)
            played += 1
        return scores


def _draw(conversation: Conversation, words: str) -> str:
    return hashlib.sha256(f"{conversation!r}\0{words}".encode(errors="surrogatepass")).hexdigest()


def _asked(
    verdicts: Verdicts, shown_texts: Sequence[Shown], labels: Sequence[str], counted: bool = True
) -> list[Verdict]:
    """The verdict on each. Raises NoVerdict where the model gave none."""
    found = verdicts.ask([one.prompt for one in shown_texts], labels, counted)
    read = [one for one in found if one is not None]
    if len(read) < len(found):
        raise NoVerdict(
            f"the judge gave no verdict on {len(found) - len(read):,} of {len(found):,} questions"
            f"{_why_none(verdicts)}; needed: a model that answers {labels[0]} to {labels[-1]} in double brackets"
        )
    return read


def _why_none(verdicts: Verdicts) -> str:
    counts, tokens = verdicts.counts, verdicts.model.tokens
    why = [f"{counts.cut:,} answers so far were cut at {tokens:,} tokens (--judge_tokens)"] * bool(counts.cut)
    why += [f"{counts.withheld:,} were withheld: {verdicts.withheld}"] * bool(counts.withheld)
    return f" ({'; '.join(why)})" if why else ""
