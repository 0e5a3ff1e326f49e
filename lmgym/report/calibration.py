"""Calibration of a scorer, and how sure its accuracy is.

A calibrated scorer gets right as many pairs as it is confident of.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

BOOTSTRAP_CELLS = 2_000_000  # of 8 bytes, held at once


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
    columns = edges[filled].tolist(), edges[filled + 1].tolist(), pairs[filled].tolist(), *means
    return [ReliabilityBin(*row) for row in zip(*columns, strict=True)]


def accuracy_interval(right: NDArray, prompts: NDArray, samples: int = 1000, seed: int = 0) -> tuple[float, float]:
    """95% percentile bootstrap (Efron 1979) of the share of right pairs; prompts, numbered from 0, are resampled.

    right, prompts: [pairs]; `right` is 1, 0, or a half for a tie. Pairs of one prompt share their difficulty. It has no
    width where every prompt is right.
    """
    low, high = np.quantile(bootstrap(right, prompts, samples, seed), [0.025, 0.975])
    return float(low), float(high)


def bootstrap(right: NDArray, prompts: NDArray, samples: int, seed: int) -> NDArray[np.float64]:
    """Accuracies[samples] of prompts drawn with replacement.

    Prompts with as many pairs and as many right ones are interchangeable, so how often each such kind is drawn is one
    multinomial: the distribution of drawing prompts one by one, at the cost of a few kinds instead of all prompts.
    """
    sums = np.stack([np.bincount(prompts, right), np.bincount(prompts)])
    kinds, occurrences = np.unique(sums, axis=1, return_counts=True)
    rng, block = np.random.default_rng(seed), max(1, BOOTSTRAP_CELLS // len(occurrences))
    total = occurrences.sum()
    drawn = [
        kinds @ rng.multinomial(total, occurrences / total, size=min(block, samples - start)).T
        for start in range(0, samples, block)
    ]
    correct, counts = np.concatenate(drawn, axis=1)
    return correct / counts
