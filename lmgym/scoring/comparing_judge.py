"""A model that compares replies: P of each pair in both orders, and strengths of the replies to one prompt.

Design decisions:
- A comparison is asked in both orders. P(a beats b) is the mean, from which a preference for a place cancels.
- The replies to a prompt are scored together, by strengths of which each group's sum is 0 (strengths.py): they rank
  replies to one prompt, and say nothing across prompts.
- A reply that met nobody for want of verdicts has NaN, never a number.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike

from lmgym.errors import InputError, shown
from lmgym.report.calibration import calibration_error
from lmgym.scoring.judge_prompts import NAMES, Criterion, Shown, comparing_prompt
from lmgym.scoring.llm_judge import MOST_CHARACTERS, ONE, no_verdict
from lmgym.scoring.strengths import ROUND_ROBIN, Pair, bradley_terry, comparisons_of, next_pairs, rounds_of
from lmgym.scoring.verdicts import Verdict, Verdicts
from lmgym.statistics import Estimate, share
from lmgym.text import Conversation, Reply, words_of

SMALLEST = 1e-12  # a probability whose logit is still finite


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


@dataclass(frozen=True)
class BothOrders:
    """Figures of comparisons on pairs whose first reply is the better one."""

    right: Estimate
    """the share that is right in both orders"""
    changes: Estimate
    """the share whose better reply changes with the order"""
    calibration_error: float
    """of P, the mean of both orders"""

    @classmethod
    def of(cls, shown_first: ArrayLike, shown_second: ArrayLike, prompts: ArrayLike) -> "BothOrders":
        """From P [pairs] that the better reply wins where it is shown first and second; intervals over the prompts."""
        p = np.stack([np.asarray(shown_first, float), np.asarray(shown_second, float)], 1)
        mean = np.clip(p.mean(axis=1), SMALLEST, 1 - SMALLEST)
        return cls(
            share((p > 0.5).all(axis=1), prompts),
            share((p[:, 0] > 0.5) != (p[:, 1] > 0.5), prompts),
            calibration_error(np.log(mean / (1 - mean))),
        )


@final
class ComparingJudge:
    """Compares replies to one conversation; as a scorer, all replies to a conversation with each other."""

    def __init__(
        self, verdicts: Verdicts, criteria: Sequence[Criterion] = ONE, most_characters: int = MOST_CHARACTERS
    ) -> None:
        self.verdicts, self.criteria, self.most_characters = verdicts, criteria, most_characters
        self.order_bias, self._cut = OrderBias(), set[Conversation]()
        self.starting: dict[str, str] = {}
        """replies of the starting policy, by `key_of` their conversations"""

    @property
    def cut(self) -> int:
        """Questions with a reply or a conversation that was too long to be shown whole."""
        return len(self._cut)

    def announce(self, conversations: Sequence[Conversation], groups: Sequence[Sequence[Reply]]) -> None:
        """Says what the comparisons within all groups may cost at most.

        Raises InputError for a batch of Swiss rounds, of which each depends on the ones before.
        """
        most = max((len({*map(words_of, group)}) for group in groups), default=0)
        if self.verdicts.model.by_batch and most > ROUND_ROBIN:
            raise InputError(
                f"--batch with {most:,} replies to a prompt, which meet in rounds that depend on the ones before; "
                f"needed: at most {ROUND_ROBIN} replies, or no --batch"
            )
        asked = []
        for conversation, group in zip(conversations, groups, strict=True):
            distinct = sorted({words_of(reply): reply for reply in group}.values(), key=lambda one: -len(words_of(one)))
            longest = [(a, b) for i, a in enumerate(distinct) for b in distinct[i + 1 :]]
            for a, b in longest[: comparisons_of(len(distinct))]:
                asked += [self._asked(conversation, pair).prompt for pair in ((a, b), (b, a))]
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
        found = self.try_to_compare(conversations, firsts, seconds)
        given = [one for one in found if one is not None]
        if len(given) < len(found):
            raise no_verdict(self.verdicts, len(found) - len(given), len(found), NAMES)
        return given

    def try_to_compare(
        self, conversations: Sequence[Conversation], firsts: Sequence[Reply], seconds: Sequence[Reply]
    ) -> list[Comparison | None]:
        """As `compare`, with None for two replies between which the model does not choose in one of the orders."""
        both = zip(*self._both_orders(conversations, firsts, seconds), strict=True)
        comparisons = [Comparison(a.p[0], b.p[1]) if a and b else None for a, b in both]
        for comparison in comparisons:
            if comparison:
                self.order_bias.add(comparison)
        return comparisons

    def details(self, conversation: Conversation, first: Reply, second: Reply) -> dict[str, Any]:
        """P that the first of two compared replies is better, where it is shown first and second; the judge's words.

        Empty without a verdict in both orders, and of equal replies.
        """
        if words_of(first) == words_of(second):
            return {}
        [shown_first], [shown_second] = self._both_orders([conversation], [first], [second], counted=False)
        if not (shown_first and shown_second):
            return {}
        found: dict[str, Any] = {"shown_first": shown_first.p[0], "shown_second": shown_second.p[1]}
        words = [shown_first.words, shown_second.words]
        return found | ({"reasons": words} if any(words) else {})

    def _both_orders(
        self,
        conversations: Sequence[Conversation],
        firsts: Sequence[Reply],
        seconds: Sequence[Reply],
        counted: bool = True,
    ) -> tuple[list[Verdict | None], list[Verdict | None]]:
        """The verdicts with the first reply shown first, and those with the second one."""
        orders = [
            self._asked(c, pair)
            for c, a, b in zip(conversations, firsts, seconds, strict=True)
            for pair in ((a, b), (b, a))
        ]
        self._cut |= {one.prompt for one in orders if one.is_cut}
        found = self.verdicts.ask([one.prompt for one in orders], NAMES, counted)
        return found[::2], found[1::2]

    def score(self, conversations: Sequence[Conversation], replies: Sequence[Reply]) -> np.ndarray:
        """float32 [replies]: `score_groups` of the replies to each conversation.

        Raises InputError for a conversation with one reply, and NoVerdict for a reply without a verdict.
        """
        places: dict[Conversation, list[int]] = {}
        for place, conversation in enumerate(conversations):
            places.setdefault(conversation, []).append(place)
        groups = [[replies[place] for place in of_one] for of_one in places.values()]
        found = np.zeros(len(replies), dtype=np.float32)
        for of_one, scores in zip(places.values(), self.score_groups(list(places), groups), strict=True):
            found[of_one] = scores
        if missing := int(np.isnan(found).sum()):
            raise no_verdict(self.verdicts, missing, len(found), NAMES)
        return found

    def shares_won(self, conversations: Sequence[Conversation], replies: Sequence[Reply]) -> list[float]:
        """P that each reply is better than the starting reply to its conversation; NaN without a verdict.

        The first reply that comes for a conversation is its starting reply, and has 1/2.
        """
        first = {key_of(c): words_of(reply) for c, reply in reversed(list(zip(conversations, replies, strict=True)))}
        self.starting = first | self.starting
        against = [self.starting[key_of(c)] for c in conversations]
        asked = [i for i, (a, b) in enumerate(zip(replies, against, strict=True)) if words_of(a) != b]
        found = self.try_to_compare(
            [conversations[i] for i in asked], [replies[i] for i in asked], [against[i] for i in asked]
        )
        shares = [0.5] * len(replies)
        for i, one in zip(asked, found, strict=True):
            shares[i] = one.p if one else float("nan")
        return shares

    def longer_by(self, conversation: Conversation | str | None, reply: Reply) -> int | None:
        """Characters that a reply has more than the starting reply to its conversation; None without one."""
        start = self.starting.get(key_of(conversation)) if isinstance(conversation, Conversation) else None
        return None if start is None else len(words_of(reply)) - len(start)

    def score_groups(
        self, conversations: Sequence[Conversation], groups: Sequence[Sequence[Reply]]
    ) -> list[list[float]]:
        """For each reply of a group, which answer one conversation, its strength in logits; each group's sum is 0.

        Equal replies are compared as one, and all of a group's being equal have 0. The order of the replies does not
        matter. NaN without a verdict on any of its comparisons. Raises InputError for a group of one reply.
        """
        if lonely := next((c for c, group in zip(conversations, groups, strict=True) if len(group) == 1), None):
            raise InputError(
                f"a judge that compares was given one reply to {shown(lonely.turns[-1].text if lonely.turns else '')}; "
                "needed: several replies to a conversation, or a judge that grades"
            )
        distinct = [{words_of(reply): reply for reply in group} for group in groups]
        tables = [Table(c, own) for c, own in zip(conversations, distinct, strict=True)]
        while matches := [(table, pair) for table in tables for pair in table.next_round()]:
            firsts, seconds = ([t.reply(pair[side]) for t, pair in matches] for side in (0, 1))
            found = self.try_to_compare([table.conversation for table, _ in matches], firsts, seconds)
            for (table, pair), comparison in zip(matches, found, strict=True):
                table.add(pair, comparison)
        scores = [table.scores() for table in tables]
        expanded = [[own[words_of(reply)] for reply in group] for own, group in zip(scores, groups, strict=True)]
        return [_centred(strengths) for strengths in expanded]


@final
class Table:
    """The comparisons of the different replies to a conversation."""

    def __init__(self, conversation: Conversation, replies: Mapping[str, Reply]) -> None:
        """Numbers the replies by a digest, so that their order does not matter."""
        self.conversation, self.replies = conversation, replies
        self.words = sorted(replies, key=partial(_draw, conversation))
        self.won: dict[Pair, float] = {}
        self.met: set[Pair] = set()
        self.rounds = rounds_of(len(replies)) if len(replies) > 1 else 0

    def reply(self, number: int) -> Reply:
        """The reply of a number."""
        return self.replies[self.words[number]]

    def next_round(self) -> list[Pair]:
        """The pairs that meet next; none at the end."""
        if not self.rounds:
            return []
        self.rounds -= 1
        return next_pairs(bradley_terry(len(self.words), self.won).tolist(), self.met)

    def add(self, pair: Pair, comparison: Comparison | None) -> None:
        """Keeps the comparison of a pair; None without a verdict."""
        self.met.add(pair)
        if comparison:
            self.won[pair] = comparison.p

    def scores(self) -> dict[str, float]:
        """Strengths by the words of a reply."""
        judged = {number for pair in self.won for number in pair}
        strengths = bradley_terry(len(self.words), self.won)
        return {
            words: float(strengths[number]) if number in judged or len(self.words) == 1 else float("nan")
            for number, words in enumerate(self.words)
        }


def _centred(strengths: Sequence[float]) -> list[float]:
    """Less the mean of those that are known, which equal replies move: each counts."""
    known = [one for one in strengths if not math.isnan(one)]
    return [one - math.fsum(known) / len(known) if known else one for one in strengths]


def key_of(conversation: Conversation) -> str:
    """A digest of a conversation."""
    return hashlib.sha256(repr(conversation).encode(errors="surrogatepass")).hexdigest()[:24]


def _draw(conversation: Conversation, words: str) -> str:
    return hashlib.sha256(f"{conversation!r}\0{words}".encode(errors="surrogatepass")).hexdigest()
