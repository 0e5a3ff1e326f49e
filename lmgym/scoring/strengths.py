"""Strengths of the replies to one prompt from comparisons of two: who meets whom, and the Bradley-Terry model.

Up to ROUND_ROBIN replies each meets each. Of more, neighbours in strength meet in Swiss rounds: about log2 n of them
separate n replies as well as many more comparisons at random would.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

import numpy as np

ROUND_ROBIN = 6
PRIOR_STD = 2.0  # of strengths, in logits, around 0: a reply that won everything has a finite one
STEPS, SMALL = 50, 1e-10  # of Newton's method, which takes about 6
Pair = tuple[int, int]


def rounds_of(count: int) -> int:
    """Rounds in which so many replies meet: 1 of all pairs, or Swiss ones."""
    return 1 if count <= ROUND_ROBIN else math.ceil(math.log2(count)) + 1


def comparisons_of(count: int) -> int:
    """Comparisons of so many different replies, each asked in both orders."""
    return count * (count - 1) // 2 if count <= ROUND_ROBIN else rounds_of(count) * (count // 2)


def next_pairs(strengths: Sequence[float], met: Collection[Pair]) -> list[Pair]:
    """The pairs of the next round, as (smaller number, larger number).

    Of more than ROUND_ROBIN the strongest that is left meets the next strongest that it has not met; of an odd number
    one has no match, the weakest of those with the most matches so far.
    """
    numbers = range(len(strengths))
    if len(strengths) <= ROUND_ROBIN:
        return [pair for pair in combinations(numbers, 2) if pair not in met]
    played = [sum(i in pair for pair in met) for i in numbers]
    left = sorted(numbers, key=lambda i: (-strengths[i], i))
    if len(left) % 2:
        left.remove(max(left, key=lambda i: (played[i], -strengths[i], i)))
    return _paired(left, met) or [(min(two), max(two)) for two in zip(left[::2], left[1::2], strict=True)]


def _paired(left: Sequence[int], met: Collection[Pair]) -> list[Pair] | None:
    """Pairs of neighbours that have not met, the first one's before the others'; None if there are none."""
    if not left:
        return []
    first, *others = left
    for second in others:
        pair = min(first, second), max(first, second)
        if pair not in met and (rest := _paired([i for i in others if i != second], met)) is not None:
            return [pair, *rest]
    return None


def bradley_terry(count: int, won: Mapping[Pair, float]) -> np.ndarray:
    """float64 [count]: strengths in logits, which sum to 0, from the share that the first of a pair won, in [0, 1].

    The mode of the Bradley-Terry model's likelihood (Bradley and Terry 1952) with a normal prior of mean 0 and standard
    deviation PRIOR_STD, by Newton's method; the likelihood takes shares as well as wins.
    """
    strengths = np.zeros(count)
    if not won:
        return strengths
    first, second = np.array(list(won)).T
    share = np.array(list(won.values()))
    for _ in range(STEPS):
        p = 1 / (1 + np.exp(strengths[second] - strengths[first]))
        gradient, curvature = -strengths / PRIOR_STD**2, np.eye(count) / PRIOR_STD**2
        np.add.at(gradient, first, share - p)
        np.add.at(gradient, second, p - share)
        weight = p * (1 - p)
        for rows, columns, sign in ((first, first, 1), (second, second, 1), (first, second, -1), (second, first, -1)):
            np.add.at(curvature, (rows, columns), sign * weight)
        step = np.linalg.solve(curvature, gradient)
        strengths += step
        if np.abs(step).max() < SMALL:
            break
    return strengths - strengths.mean()
