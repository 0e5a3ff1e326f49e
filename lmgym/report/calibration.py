"""Calibration of a scorer: a calibrated one gets right as many pairs as it is confident of."""

from typing import NamedTuple

import numpy as np
import scipy  # imports scipy.optimize where its name is first used
from numpy.typing import ArrayLike

FEWEST_PAIRS = 50  # that a temperature is fitted on; the calibration error of fewer is mostly noise


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


def calibration_error(margins: ArrayLike) -> float:
    """Expected calibration error of sigmoid(margin) over pairs: mean |confidence - accuracy| of their bin."""
    margins = np.asarray(margins, float)
    bins = reliability(margins, np.zeros_like(margins))
    return float(sum(b.pairs * abs(b.confidence - b.accuracy) for b in bins) / len(margins))


class Temperature(NamedTuple):
    """A fitted temperature, or why there is none."""

    value: float | None
    reason: str = ""


def fit_temperature(margins: ArrayLike) -> Temperature:
    """T > 0 at which sigmoid(margin / T) makes the choices of these pairs likeliest; margins are chosen - rejected.

    Logistic regression on the margin without an intercept, whose slope is 1 / T (Guo et al. 2017, section 4.2). None
    for fewer than FEWEST_PAIRS pairs, where no T is finite (margins of mean 0 or below) and where none is above 0 (all
    margins are of the right sign).
    """
    margins = np.asarray(margins, float)
    if len(margins) < FEWEST_PAIRS:
        return Temperature(None, f"{len(margins)} pairs; a temperature is fitted on {FEWEST_PAIRS} or more")
    if margins.mean() <= 0:
        return Temperature(None, f"the mean margin is {margins.mean():.3g}: no temperature is likelier than guessing")
    if margins.min() >= 0:
        return Temperature(None, "no pair is wrong: the lower the temperature, the likelier the choices")

    def slope(inverse: float) -> float:  # of the log-likelihood; falls in its argument
        return float((margins / (1 + np.exp(np.minimum(inverse * margins, 700)))).mean())

    high = 1 / np.abs(margins).mean()
    while slope(high) > 0:
        high *= 2
    return Temperature(1 / float(scipy.optimize.brentq(slope, 0.0, high, xtol=high * 1e-12)))


def cross_fitted(margins: ArrayLike, prompts: ArrayLike) -> tuple[np.ndarray, str]:
    """(margins, each over a temperature that was fitted on other prompts; "") or (no margins, why).

    The prompts are in two halves, each scaled by the temperature of the other: calibration measured on them is not that
    of the pairs that the temperature was fitted on.
    """
    margins = np.asarray(margins, float)
    half = np.unique(np.asarray(prompts), return_inverse=True)[1] % 2 == 1
    first, second = fit_temperature(margins[~half]), fit_temperature(margins[half])
    if first.value is None or second.value is None:
        return np.empty(0), f"half of the prompts: {first.reason or second.reason}"
    return margins / np.where(half, first.value, second.value), ""
