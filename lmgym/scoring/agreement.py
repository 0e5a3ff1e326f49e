"""The agreement of two scorers on the order of replies."""

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


def pair_agreement(first: ArrayLike, second: ArrayLike, prompts: Sequence[Hashable] | None = None) -> float | None:
    """Share of pairs of replies that both scores order alike; a pair that either ties counts a half.

    Of pairs of replies to the same prompt; if no prompt has two replies, or `prompts` is None, of all pairs. None
    without a pair. It is (1 + tau_a) / 2 by Kendall's tau_a where all pairs count.
    """
    a, b = np.asarray(first, float), np.asarray(second, float)
    groups: dict[Hashable, list[int]] = {}
    for place, prompt in enumerate(prompts or [0] * len(a)):
        groups.setdefault(prompt, []).append(place)
    several = [places for places in groups.values() if len(places) > 1] or [list(range(len(a)))]
    counts = [_alike(a[places], b[places]) for places in several]
    pairs = sum(number for _, number in counts)
    return sum(alike for alike, _ in counts) / pairs if pairs else None


def _alike(a: NDArray[np.float64], b: NDArray[np.float64]) -> tuple[float, int]:
    """(pairs ordered alike, ties half; pairs)."""
    above = np.triu_indices(len(a), 1)
    signs = np.sign(a[above[0]] - a[above[1]]) * np.sign(b[above[0]] - b[above[1]])
    return float((signs + 1).sum() / 2), len(signs)
