"""Coverage of 95% intervals by simulation: how often they hold the truth, and how often there is none."""

from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats

from lmgym.statistics import Estimate, Ratio, auc, mean

UNITS = (2, 5, 10, 30, 200)
SAMPLES = 2000


@dataclass(frozen=True)
class World:
    """Rows of units: a share with a correlation inside of units, values with ties, or real values."""

    share: float = 0.5
    """of rows that are 1; of values with ties, nan; of real values, 0 with a mean of 0"""
    correlation: float = 0.0
    sizes: str = "one"
    values: str = "binary"

    def draw(self, units: int, rng: np.random.Generator) -> tuple[Ratio, float]:
        """Sums and numbers of rows by unit, and the true mean."""
        sizes = {
            "one": lambda: np.ones(units, int),
            "five": lambda: np.full(units, 5),
            "unequal": lambda: rng.geometric(0.25, units),
            "very unequal": lambda: np.minimum(rng.geometric(0.08, units), 60),
        }[self.sizes]()
        if self.values == "normal":
            return Ratio(sizes * rng.normal(0, 1, units) + rng.normal(0, np.sqrt(sizes)), sizes.astype(float)), 0.0
        if self.values == "ties":  # 0, a half or 1
            drawn = rng.choice([0, 0.5, 1], sizes.sum(), p=[0.1, 0.5, 0.4])
            unit = np.repeat(np.arange(units), sizes)
            return Ratio(np.bincount(unit, drawn), sizes.astype(float), (0, 1)), 0.65
        p = np.full(units, self.share)
        if self.correlation:
            scale = (1 - self.correlation) / self.correlation
            p = rng.beta(self.share * scale, (1 - self.share) * scale, units)
        return Ratio(rng.binomial(sizes, p).astype(float), sizes.astype(float), (0, 1)), self.share


def holds(found: Estimate, truth: float) -> bool:
    return found.low is not None and found.high is not None and found.low - 1e-9 <= truth <= found.high + 1e-9


def simulate(world: World, units: int, samples: int, seed: int = 0) -> tuple[float, float]:
    """(share of the intervals that hold the truth, share of samples without one)."""
    rng = np.random.default_rng([seed, units])
    drawn = [world.draw(units, rng) for _ in range(samples)]
    found = [(ratio.estimate, truth) for ratio, truth in drawn]
    given = [holds(estimate, truth) for estimate, truth in found if estimate.low is not None]
    return float(np.mean(given)), 1 - len(given) / samples


MEANS = [
    *(World(share, 0.3, sizes) for share in (0.02, 0.1, 0.5, 0.9) for sizes in ("five", "unequal")),
    *(World(share, 0.05, "very unequal") for share in (0.02, 0.1, 0.5, 0.9)),
    World(values="ties"),
    World(values="ties", sizes="unequal"),
    World(values="normal"),
    World(values="normal", sizes="unequal"),
]


def test_the_interval_of_ten_prompts_with_unequal_numbers_of_pairs_holds_the_truth() -> None:
    coverage, refused = simulate(World(0.7, 0.3, "unequal"), 10, 500)
    assert coverage >= 0.93
    assert refused == 0


def enumerate_shares(of: float, units: int, bounds: tuple[float, float] | None) -> tuple[float, float]:
    """(coverage, share of samples without an interval) of independent flags, over all numbers of ones."""
    found = [mean([1] * ones + [0] * (units - ones), bounds=bounds) for ones in range(units + 1)]
    chances = stats.binom.pmf(range(units + 1), units, of)
    refused = sum(chance for chance, one in zip(chances, found, strict=True) if one.low is None)
    covered = sum(chance for chance, one in zip(chances, found, strict=True) if holds(one, of))
    return covered / (1 - refused), refused


@pytest.mark.parametrize("units", UNITS)
@pytest.mark.parametrize("of", [0.02, 0.1, 0.5, 0.9])
def test_wilsons_interval_of_a_share_covers_90_percent(of: float, units: int) -> None:
    coverage, refused = enumerate_shares(of, units, (0, 1))
    assert coverage >= 0.90
    assert refused == 0


@pytest.mark.parametrize("units", [30, 200])
@pytest.mark.parametrize("of", [0.1, 0.5, 0.9])
def test_few_samples_of_30_units_are_refused_where_no_bounds_are_given(of: float, units: int) -> None:
    coverage, refused = enumerate_shares(of, units, None)
    assert coverage >= 0.93
    assert refused <= 0.05


def test_the_interval_of_few_exponential_values_covers_87_percent() -> None:
    rng = np.random.default_rng(0)
    for units in (2, 5, 10, 30):
        found = [mean(values) for values in rng.exponential(size=(400, units))]
        assert np.mean([holds(one, 1.0) for one in found]) >= 0.87


@pytest.mark.slow
@pytest.mark.parametrize("units", UNITS)
@pytest.mark.parametrize("world", MEANS, ids=str)
def test_the_interval_of_a_mean_covers_93_percent(world: World, units: int) -> None:
    coverage, refused = simulate(world, units, SAMPLES)
    print(f"{units} units, {world}: coverage {coverage:.3f}, refused {refused:.3f}")
    assert coverage >= 0.93
    assert refused <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("users", [5, 10, 30, 200])
def test_the_interval_of_an_auc_over_users_covers_93_percent(users: int) -> None:
    rng = np.random.default_rng(users)
    truth = float(stats.norm.cdf(0.8 / np.sqrt(2 * (1 + 0.5))))  # a user's rows share a shift of variance .5
    found = []
    for _ in range(SAMPLES):
        user = np.repeat(np.arange(users), rng.geometric(0.2, users))
        positive = rng.random(len(user)) < 0.4
        scores = rng.normal(0, np.sqrt(0.5), users)[user] + rng.normal(0, 1, len(user)) + 0.8 * positive
        found.append(auc(scores, positive, user))
    given = [holds(one, truth) for one in found if one.low is not None]
    print(f"AUC over {users} users: coverage {np.mean(given):.3f}, {len(given)} of {SAMPLES} given")
    assert np.mean(given) >= 0.93
