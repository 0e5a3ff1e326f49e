"""Calibration of a scorer: a calibrated one gets right as many pairs as it is confident of."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike


class ReliabilityBin(NamedTuple):
    """Pairs whose confidence lies in [low, high): how many, and their mean confidence and accuracy."""

    low: float
    high: float
    pairs: int
    confidence: float
    accuracy: float


def reliability(chosen: ArrayLike, rejected: ArrayLike, bins: int = 10) -> list[ReliabilityBin]:
    """Reliability diagram of sigmoid(chosen - rejected) in equal bins over [.5, 1], without the empty ones.

    "The chosen reply wins" is true of every pair, so a diagram of that claim shows nothing. As usual for a classifier
    (Guo et al. 2017, eq. 3) the confidence is that of the side picked, max(p, 1 - p), and a pair is right if that side
    is the chosen one. A tie picks neither at confidence .5 and is half right: a scorer of constants is calibrated.
    The last bin includes 1. Scores are finite.
    """
    margins = np.asarray(chosen, float) - np.asarray(rejected, float)
    confidence = 1 / (1 + np.exp(-np.abs(margins)))
    right = (np.sign(margins) + 1) / 2
    place = np.minimum((2 * bins * (confidence - 0.5)).astype(np.int64), bins - 1)
    pairs = np.bincount(place, minlength=bins)
    filled = np.flatnonzero(pairs)
    means = [(np.bincount(place, values, bins)[filled] / pairs[filled]).tolist() for values in (confidence, right)]
    edges = np.linspace(0.5, 1, bins + 1)
    return [
        ReliabilityBin(*row)
        for row in zip(edges[filled].tolist(), edges[filled + 1].tolist(), pairs[filled].tolist(), *means, strict=True)
    ]
