"""The units that a test needs, and the changes that a test of so many can find."""

import math

import numpy as np
from scipy import special

from lmgym.errors import InputError


def units_needed(difference: float, spread: float, power: float = 0.9, alpha: float = 0.05) -> int:
    """The number of units (per side, if unpaired) with which a two-sided test finds a difference with that power.

    ((z(1 - alpha/2) + z(power)) * spread / difference)^2, rounded up (Chow, Shao and Wang 2008, section 3.2), with the
    `spread` of a pilot. The power is 0.9 rather than the usual 0.8 because a pilot's spread is an estimate. Raises
    InputError for a difference of 0, and a power or alpha that is not between 0 and 1.
    """
    if difference == 0 or not np.isfinite(difference) or not np.isfinite(spread):
        raise InputError(f"a difference of {difference:g} with a spread of {spread:g}; needed: one that is not 0")
    return max(2, int(np.ceil((_quantiles(power, alpha) * spread / difference) ** 2)))


def detectable(spread: float, units: int, power: float = 0.9, alpha: float = 0.05) -> float:
    """The difference that a two-sided test of this many units finds with that power: `units_needed` turned round."""
    return _quantiles(power, alpha) * spread / math.sqrt(units)


def units_for_mean(difference: float, spread: float, power: float = 0.9, alpha: float = 0.05) -> int:
    """`units_needed` where the test takes the spread from the same few units, as a t test or sign flips do.

    z(1 - alpha/2)^2 / 2 units more (Guenther 1981, "Sample size formulas for normal theory t tests").
    """
    return units_needed(difference, spread, power, alpha) + math.ceil(_units_for_spread(alpha))


def detectable_mean(spread: float, units: int, power: float = 0.9, alpha: float = 0.05) -> float | None:
    """The mean that such a test of this many units finds with that power; None if they are too few for any."""
    left = units - _units_for_spread(alpha)
    return _quantiles(power, alpha) * spread / math.sqrt(left) if left > 0 else None


def _units_for_spread(alpha: float) -> float:
    return float(special.ndtri(1 - alpha / 2)) ** 2 / 2


def largest_spread(spread: float, units: int, confidence: float = 0.9) -> float:
    """The upper confidence limit of a standard deviation that was measured on this many units, at least 2."""
    return spread * float(np.sqrt((units - 1) / special.chdtri(units - 1, confidence)))


def _quantiles(power: float, alpha: float) -> float:
    for name, value in (("power", power), ("alpha", alpha)):
        if not 0 < value < 1:
            raise InputError(f"{name}={value:g}; needed: between 0 and 1")
    return float(special.ndtri(1 - alpha / 2) + special.ndtri(power))
