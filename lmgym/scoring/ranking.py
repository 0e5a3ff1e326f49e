"""Scores of several scorers for the replies to one prompt: computed, ranked, standardised, blended.

A scorer's scores are a list, with None where it failed. Rank 1 is best; equal scores share a rank.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from lmgym.scoring.protocol import Scorer, read_scores
from lmgym.text import Conversation

Column = Sequence[float | None]
NOBODY = "nobody"
"""selects where there is no scorer that did not fail"""


@dataclass
class ScoreTable:
    """Scores by scorer, and the error of each scorer that failed."""

    scores: dict[str, list[float | None]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def score_replies(scorers: Mapping[str, Scorer], conversation: Conversation, replies: Sequence[str]) -> ScoreTable:
    """Scores of the replies by every scorer. The error of one that fails is recorded, and the others still score."""
    if not replies:
        return ScoreTable({name: [] for name in scorers})
    table = ScoreTable()
    for name, scorer in scorers.items():
        try:
            scores = scorer.score([conversation] * len(replies), replies)
            table.scores[name] = list(read_scores(scores, len(replies)))
        except Exception as error:  # a scorer may be the user's own code, which can raise anything
            table.scores[name] = [None] * len(replies)
            table.failed[name] = f"{type(error).__name__}: {error}"
    return table


def ranks(scores: Column) -> list[int | None]:
    """1 for the highest score; equal scores share the better rank, None has none."""
    known = sorted((score for score in scores if score is not None), reverse=True)
    return [None if score is None else 1 + known.index(score) for score in scores]


def standardise(scores: Column) -> list[float | None]:
    """Scores less their mean, over their standard deviation (of the population); all 0 if they are equal."""
    known = [score for score in scores if score is not None]
    mean = math.fsum(known) / max(1, len(known))
    std = math.sqrt(math.fsum((score - mean) ** 2 for score in known) / max(1, len(known)))
    return [None if score is None else (score - mean) / std if std > 1e-12 else 0.0 for score in scores]


def select_best(scores: Mapping[str, Column], weights: Mapping[str, float]) -> tuple[int, str]:
    """(index of the best reply, the scorer or blend that selected it); the first of equal ones.

    If all scorers failed, the first reply is selected, by "nobody".
    """
    column, selected_by = selecting_scores(scores, weights)
    known = [-math.inf if value is None else value for value in column]
    return known.index(max(known)) if known else 0, selected_by


def selecting_scores(scores: Mapping[str, Column], weights: Mapping[str, float]) -> tuple[Column, str]:
    """(the scores by which the best reply is selected, the scorer or blend that they are of).

    They are the weighted sum of standardised scores, or one scorer's own. If all weighted scorers failed, they are
    those of the first scorer that did not; if all scorers failed, there are none, of "nobody".
    """
    working = {name: weight for name, weight in weights.items() if None not in scores.get(name, [None])}
    if list(working.values()) == [1.0]:
        return scores[next(iter(working))], describe_weights(working)
    if working:
        columns = [[weight * (z or 0.0) for z in standardise(scores[name])] for name, weight in working.items()]
        return [math.fsum(values) for values in zip(*columns, strict=True)], describe_weights(working)
    return next(((column, name) for name, column in scores.items() if None not in column), ((), NOBODY))


def describe_weights(weights: Mapping[str, float]) -> str:
    """`rm_a`, or a blend in the syntax of `%blend`."""
    if list(weights.values()) == [1.0]:
        return next(iter(weights))
    return " ".join(f"{name}={weight:g}" for name, weight in weights.items())


def agreement(turns: Sequence[Mapping[str, Column]]) -> dict[tuple[str, str], tuple[float, int]]:
    """For every two scorers: the share of reply pairs that they put in the same order, and the number of pairs.

    Pairs that either scorer ties are left out.
    """
    counts: dict[tuple[str, str], list[int]] = {}
    for scores in turns:
        names = [name for name, column in scores.items() if None not in column]
        for first, second in combinations(names, 2):
            count = counts.setdefault((first, second), [0, 0])
            for i, j in combinations(range(len(scores[first])), 2):
                product = _order(scores[first], i, j) * _order(scores[second], i, j)
                count[0] += product > 0
                count[1] += product != 0
    return {names: (same / total, total) for names, (same, total) in counts.items() if total}


def _order(column: Column, i: int, j: int) -> int:
    a, b = column[i] or 0.0, column[j] or 0.0
    return (a > b) - (a < b)
