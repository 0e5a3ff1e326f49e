"""Preferences: how sure it is that one speech is better than another, by the P(win) of both.

They are those of NYU's debate project, with its constants.
"""

import math
from collections.abc import Mapping
from typing import Literal, Protocol

PreferenceName = Literal["log_prob", "prob", "logit", "sigmoid", "binary"]
POWER, SCALE, SHARPNESS, WIDTH = 2.25, 5.75, 5.0, 0.125


class Preference(Protocol):
    """P(chosen is better) for the P(win) of a chosen and a rejected speech, chosen > rejected."""

    def __call__(self, chosen: float, rejected: float, /) -> float: ...


def log_prob(chosen: float, rejected: float) -> float:
    """c^2.25 / (c^2.25 + r^2.25): a softmax of 2.25 log P."""
    return chosen**POWER / (chosen**POWER + rejected**POWER)


def prob(chosen: float, rejected: float) -> float:
    """sigmoid(5.75 (c - r)): a softmax of 5.75 P."""
    return _sigmoid(SCALE * (chosen - rejected))


def logit(chosen: float, rejected: float) -> float:
    """c (1 - r) / (c (1 - r) + r (1 - c)): Bradley-Terry with the logits of P as skills."""
    wins, losses = chosen * (1 - rejected), rejected * (1 - chosen)
    return wins / (wins + losses)


def sigmoid(chosen: float, rejected: float) -> float:
    """A softmax of 5 sigmoid((P - 1/2) / .125), for which differences around 1/2 count most."""
    return _sigmoid(SHARPNESS * (_sigmoid((chosen - 0.5) / WIDTH) - _sigmoid((rejected - 0.5) / WIDTH)))


def binary(chosen: float, rejected: float) -> float:
    """Certainty: 1, however near both are."""
    return 1.0


PREFERENCES: Mapping[PreferenceName, Preference] = {
    "log_prob": log_prob,
    "prob": prob,
    "logit": logit,
    "sigmoid": sigmoid,
    "binary": binary,
}


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))
