"""Forms of the gain R of gold along d, the root of the KL from the start, and how well each predicts the unseen.

    best of N   R = d (a - b d)          Gao et al. 2022 (arXiv:2210.10760), eq. for best-of-n
    RL          R = d (a - b log d)      the same, for reinforcement learning
    quadratic   R = c + a d - b d^2      with a free intercept
    up, down    isotonic up to a peak and down behind it, flat beyond its last point

A form is judged by the error on the half of a curve's points with the larger KL, from a fit of the other half.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.isotonic import IsotonicRegression

from lmgym.apps.lab.curves import Curve
from lmgym.apps.lab.plan import BEST_OF_N
from lmgym.apps.lab.pool import Array
from lmgym.statistics import Estimate, mean

Fitted = Callable[[Array], Array]
LEAST_POINTS = 6
"""of a curve, so that half of them fix three coefficients"""
GRID = 60


@dataclass(frozen=True)
class Linear:
    """A form that is linear in its coefficients, by the columns of its design."""

    name: str
    columns: tuple[Callable[[Array], Array], ...]

    def fit(self, d: Array, gain: Array) -> Fitted:
        """Least squares."""
        found = self.coefficients(d, gain)
        return lambda at: self._design(at) @ found

    def coefficients(self, d: Array, gain: Array) -> Array:
        """Of the columns."""
        return np.asarray(np.linalg.lstsq(self._design(d), gain, rcond=None)[0], dtype=np.float64)

    def _design(self, d: Array) -> Array:
        return np.stack([column(d) for column in self.columns], axis=1)


def _d_log_d(d: Array) -> Array:
    """0 at 0."""
    return d * np.log(np.where(d > 0, d, 1.0))


BEST_OF = Linear("best of N", (lambda d: d, lambda d: -d * d))
RL = Linear("RL", (lambda d: d, lambda d: -_d_log_d(d)))
QUADRATIC = Linear("quadratic", (np.ones_like, lambda d: d, lambda d: -d * d))


class UpDown:
    """Isotonic up to the point with the least squared error in all, and down behind it."""

    name = "up, down"

    def fit(self, d: Array, gain: Array) -> Fitted:
        """Tries every peak; d is sorted."""
        best, found = np.inf, gain
        for peak in range(len(d)):
            up = IsotonicRegression(increasing=True).fit_transform(d[: peak + 1], gain[: peak + 1])
            rest = d[peak + 1 :]
            down = IsotonicRegression(increasing=False).fit_transform(rest, gain[peak + 1 :]) if len(rest) else rest
            both = np.concatenate([up, down])
            error = float(((both - gain) ** 2).sum())
            if error < best:
                best, found = error, both
        return lambda at: np.interp(at, d, found)


FORMS = (BEST_OF, RL, QUADRATIC, UpDown())


def extrapolation_error(curve: Curve, form: Linear | UpDown) -> float | None:
    """Root mean square error of the gold's gain on the farther half of a curve's points; None for too few points."""
    d, gain = curve.gains()
    if len(d) < LEAST_POINTS:
        return None
    half = len(d) // 2
    predicted = form.fit(d[:half], gain[:half])(d[half:])
    return float(np.sqrt(np.square(predicted - gain[half:]).mean()))


def errors_by_form(curves: Sequence[Curve]) -> dict[str, Estimate]:
    """Mean extrapolation error of each form over curves, with intervals over worlds."""
    found = {}
    for form in FORMS:
        known = [(error, curve.world) for curve in curves if (error := extrapolation_error(curve, form)) is not None]
        found[form.name] = mean([error for error, _ in known], [world for _, world in known])
    return found


def own_form(method: str) -> Linear:
    """Gao et al.'s for a method."""
    return BEST_OF if method == BEST_OF_N else RL


def coefficients(curves: Sequence[Curve]) -> tuple[Estimate, Estimate]:
    """(a, b) of Gao et al.'s form of the curves' method, means with intervals over their worlds."""
    fits = np.array([own_form(curve.method).coefficients(*curve.gains()) for curve in curves])
    worlds = [curve.world for curve in curves]
    return mean(fits[:, 0], worlds), mean(fits[:, 1], worlds)


def on_grid(curves: Sequence[Curve]) -> tuple[Array, Array]:
    """(d [GRID], gains [curves, GRID]) up to the distance that all of them reach."""
    gains = [curve.gains() for curve in curves]
    d = np.linspace(0, min(float(found[0][-1]) for found in gains), GRID)
    return d, np.stack([np.interp(d, *found) for found in gains])
