"""What scorers say of candidates: asked one after the other, ranked, standardised; one that fails is named.

Scores stand in lists, None where a scorer failed; rank 1 is best, equal scores share a rank.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lmgym.text import Conversation

Column = Sequence[float | None]


class Judge(Protocol):
    """A scorer. Every `Scorer` is one; whatever `tolist` makes numbers of will do, without torch too."""

    def score(self, conversations: Sequence[Conversation], replies: Sequence[str]) -> Any:
        """One number a reply, higher is better. Reply i answers conversation i."""
        ...


@dataclass
class Opinions:
    """Scores by scorer, and why a scorer has none."""

    scores: dict[str, list[float | None]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def ask(judges: Mapping[str, Judge], conversation: Conversation, replies: Sequence[str]) -> Opinions:
    """Every judge's scores of the replies. One that raises or gives no numbers is noted, and the next is asked."""
    opinions = Opinions()
    for name, judge in judges.items():
        try:
            opinions.scores[name] = list(_numbers(judge, [conversation] * len(replies), replies))
        except Exception as error:  # whatever a scorer's own code raises: the others still have an opinion
            opinions.scores[name] = [None] * len(replies)
            opinions.failed[name] = f"{type(error).__name__}: {error}"
    return opinions


def _numbers(judge: Judge, conversations: Sequence[Conversation], replies: Sequence[str]) -> list[float]:
    if not replies:
        return []
    found = judge.score(conversations, replies)
    numbers = [float(value) for value in (found.tolist() if hasattr(found, "tolist") else found)]
    if len(numbers) != len(replies):
        raise ValueError(f"it gave {len(numbers)} scores for {len(replies)} replies")
    if bad := [value for value in numbers if not math.isfinite(value)]:
        raise ValueError(f"it gave {bad[0]} as a score ({len(bad)} such)")
    return numbers


def ranks(scores: Column) -> list[int | None]:
    """1 for the highest; equal scores share the better rank, None has none."""
    known = sorted((s for s in scores if s is not None), reverse=True)
    return [None if s is None else 1 + known.index(s) for s in scores]


def standardise(scores: Column) -> list[float | None]:
    """Less their mean, over their standard deviation (of the population); all 0 where they are equal."""
    known = [s for s in scores if s is not None]
    mean = math.fsum(known) / max(1, len(known))
    spread = math.sqrt(math.fsum((s - mean) ** 2 for s in known) / max(1, len(known)))
    return [None if s is None else (s - mean) / spread if spread > 1e-12 else 0.0 for s in scores]


def choose(scores: Mapping[str, Column], weights: Mapping[str, float]) -> tuple[int, str]:
    """(best candidate, who says so): by the weighted sum of standardised scores; the first of equal ones.

    Where all of the weighted scorers failed, the first that did not decides; where all failed, the first reply stands.
    """
    working = {name: w for name, w in weights.items() if None not in scores.get(name, [None])}
    if list(working.values()) == [1.0]:
        return _best(scores[next(iter(working))]), described(working)
    if working:
        columns = [[w * (z or 0.0) for z in standardise(scores[name])] for name, w in working.items()]
        return _best([math.fsum(values) for values in zip(*columns, strict=True)]), described(working)
    for name, column in scores.items():
        if None not in column:
            return _best(column), name
    return 0, "nobody"


def described(weights: Mapping[str, float]) -> str:
    """`rm_a`, or a blend as `%blend` takes it."""
    if list(weights.values()) == [1.0]:
        return next(iter(weights))
    return " ".join(f"{name}={weight:g}" for name, weight in weights.items())


def _best(column: Column) -> int:
    known = [-math.inf if value is None else value for value in column]
    return known.index(max(known))


def agreement(turns: Sequence[Mapping[str, Column]]) -> dict[tuple[str, str], tuple[float, int]]:
    """By two scorers: the share of pairs of candidates that they order alike, and of how many (ties left out)."""
    counts: dict[tuple[str, str], list[int]] = {}
    for scores in turns:
        names = [name for name, column in scores.items() if None not in column]
        for a, first in enumerate(names):
            for second in names[a + 1 :]:
                alike = counts.setdefault((first, second), [0, 0])
                for i, j in _pairs(len(scores[first])):
                    product = _gap(scores[first], i, j) * _gap(scores[second], i, j)
                    alike[0] += product > 0
                    alike[1] += product != 0
    return {names: (same / of, of) for names, (same, of) in counts.items() if of}


def _pairs(n: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(n) for j in range(i)]


def _gap(column: Column, i: int, j: int) -> int:
    a, b = column[i] or 0.0, column[j] or 0.0
    return (a > b) - (a < b)
