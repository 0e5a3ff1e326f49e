"""What an app team reads of users' behaviour, with intervals; whether two policies differ; how many users that takes.

Design decisions:
- Users are what is drawn, assigned and resampled: conversations of one user are not independent.
- Every figure is a ratio of sums over users (messages over conversations, retries over replies, users back over users),
  so one method serves all: the delta method for ratios (Deng, Knoblich and Lu 2018), in which a user's share in the
  ratio's deviation is (numerator - ratio * denominator) / mean denominator.
- Two-sided tests at 5% for each figure on its own: among seven figures of policies that do not differ one will often
  look as if they did.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from lmgym.errors import InputError
from lmgym.world.days import UserActivity

Floats = NDArray[np.float64]
RETENTION_DAYS = (1, 3, 7, 30)
CELLS = 4_000_000  # of a bootstrap at once: 32 MB of counts


@dataclass(frozen=True)
class Ratio:
    """A figure: the sum of numerators[users] over the sum of denominators[users]."""

    numerator: Floats
    denominator: Floats

    @property
    def value(self) -> float:
        """NaN where there is nothing to divide by."""
        whole = self.denominator.sum()
        return float(self.numerator.sum() / whole) if whole else float("nan")

    @property
    def deviations(self) -> Floats:
        """[users] of each user from the value, of mean 0: their variance is that of the value times users."""
        return (self.numerator - self.value * self.denominator) / self.denominator.mean()

    @property
    def spread(self) -> float:
        """Standard deviation over users."""
        return float(self.deviations.std(ddof=1)) if len(self.numerator) > 1 else float("nan")


def figures(lives: UserActivity) -> dict[str, Ratio]:
    """Mean conversation length in messages of the user, retry rate of replies seen, and retention by days lived."""
    messages = lives.messages
    ones = np.ones(len(messages))
    found = {
        "conversation length": Ratio(messages.sum(1).astype(np.float64), (messages > 0).sum(1).astype(np.float64)),
        "retry rate": Ratio(lives.retries.astype(np.float64), lives.replies.astype(np.float64)),
    }
    for day in RETENTION_DAYS:
        if day < messages.shape[1]:
            found[f"retention day {day}"] = Ratio((messages[:, day] > 0).astype(np.float64), ones)
    return found


def bootstrap_intervals(
    ratios: Mapping[str, Ratio], samples: int = 1000, seed: int = 0, level: float = 0.95
) -> dict[str, tuple[float, float]]:
    """Percentile intervals of ratios of the same users, who are drawn with replacement (Efron 1979)."""
    columns = np.stack([part for ratio in ratios.values() for part in (ratio.numerator, ratio.denominator)], axis=1)
    users, rng = len(columns), np.random.default_rng(seed)
    sums = []
    for start in range(0, samples, size := max(1, CELLS // users)):
        rows = min(size, samples - start)
        drawn = rng.integers(users, size=(rows, users)) + users * np.arange(rows)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=rows * users).reshape(rows, users)
        sums.append(counts @ columns)
    whole = np.concatenate(sums)
    with np.errstate(invalid="ignore", divide="ignore"):
        values = whole[:, 0::2] / whole[:, 1::2]
    ends = np.nanquantile(values, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return {name: (float(low), float(high)) for name, low, high in zip(ratios, *ends, strict=True)}


@dataclass(frozen=True)
class Comparison:
    """B less A with its interval, the p-value of no difference, and the spread that decides how many users it takes.

    Unpaired, `spread` is the root of the sum of both variances; paired, the standard deviation of a user's difference.
    """

    difference: float
    low: float
    high: float
    p_value: float
    spread: float


def compare(a: Ratio, b: Ratio, paired: bool = False, alpha: float = 0.05) -> Comparison:
    """Whether B differs from A: Welch's t test of users' deviations, or with the same users in both a paired one.

    Where nothing varies the p-value is 1 for equal figures and 0 for others. Raises InputError for fewer than 2 users
    on a side, and for pairs of different users' numbers.
    """
    n_a, n_b = len(a.numerator), len(b.numerator)
    if min(n_a, n_b) < 2:
        raise InputError(f"{n_a} and {n_b} users: no variance to test by; needed: 2 or more with each policy")
    difference = b.value - a.value
    if paired:
        if n_a != n_b:
            raise InputError(f"pairs of {n_a} and {n_b} users; needed: the same users with both policies")
        spread = float((b.deviations - a.deviations).std(ddof=1))
        error, freedom = spread / np.sqrt(n_a), n_a - 1.0
    else:
        of_a, of_b = a.spread**2 / n_a, b.spread**2 / n_b
        spread, error = float(np.hypot(a.spread, b.spread)), float(np.sqrt(of_a + of_b))
        # Welch-Satterthwaite
        freedom = (of_a + of_b) ** 2 / max(of_a**2 / (n_a - 1) + of_b**2 / (n_b - 1), 1e-300)
    if np.isnan(difference):
        return Comparison(difference, difference, difference, difference, spread)
    if error == 0:
        return Comparison(difference, difference, difference, float(difference == 0), spread)
    reach = float(stats.t.ppf(1 - alpha / 2, freedom)) * error
    p_value = float(2 * stats.t.sf(abs(difference) / error, freedom))
    return Comparison(difference, difference - reach, difference + reach, p_value, spread)


def users_needed(difference: float, spread: float, power: float = 0.9, alpha: float = 0.05) -> int:
    """Users with each policy that find such a difference with that probability, by a two-sided test.

    ((z(1 - alpha/2) + z(power)) * spread / difference)^2, rounded up (Chow, Shao and Wang 2008, section 3.2), with the
    `spread` of a pilot's Comparison, paired or not. The power is .9 rather than the usual .8 because a pilot's spread
    is an estimate. Raises InputError for a difference of 0, and shares that are not between 0 and 1.
    """
    if difference == 0 or not np.isfinite(difference) or not np.isfinite(spread):
        raise InputError(f"a difference of {difference:g} with a spread of {spread:g}; needed: one that is not 0")
    for name, share in (("power", power), ("alpha", alpha)):
        if not 0 < share < 1:
            raise InputError(f"{name}={share:g}; needed: between 0 and 1")
    reach = stats.norm.ppf(1 - alpha / 2) + stats.norm.ppf(power)
    return max(2, int(np.ceil((reach * spread / difference) ** 2)))


def assign_users(users: int, policies: int, seed: int) -> list[NDArray[np.int64]]:
    """The numbers of the users of each policy: all users, dealt out at random, as evenly as their number allows.

    Raises InputError for fewer than 2 users a policy.
    """
    if users < 2 * policies:
        raise InputError(
            f"{users} users for {policies} policies; needed: 2 or more with each, so {2 * policies} in all"
        )
    dealt = np.random.default_rng([seed & (2**63 - 1), 1]).permutation(users)
    return [np.sort(dealt[place::policies]) for place in range(policies)]
