"""Coefficients of drawn tables are those of the packages, by hand where the numbers are few; their intervals cover."""

import sys
from collections.abc import Callable

import krippendorff
import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score
from statsmodels.stats.inter_rater import aggregate_raters, fleiss_kappa

from lmgym.apps.audit.agree.coefficients import (
    Ratings,
    cohen,
    fleiss,
    krippendorff_alpha,
    mean_of_pairs,
    require_packages,
)
from lmgym.apps.audit.agree.levels import VERDICTS, Levels
from lmgym.errors import InputError
from lmgym.statistics import Estimate, share

GRADES = Levels(("1", "2", "3", "5"), (1.0, 2.0, 3.0, 5.0), are_ordered=True, are_numbers=True)
KINDS = pytest.mark.parametrize("of", [VERDICTS, GRADES], ids=["verdicts with ties", "grades"])


def drawn(of: Levels, raters: int, rows: int, seed: int, missing: float = 0.0) -> np.ndarray:
    """Levels[raters, rows] of raters who say the row's own level in 6 of 10 votes; -1 where one said nothing."""
    rng = np.random.default_rng(seed)
    number = len(of.names)
    true = rng.integers(number, size=rows)
    said = np.where(rng.random((raters, rows)) < 0.6, true, rng.integers(number, size=(raters, rows)))
    return np.where(rng.random((raters, rows)) < missing, -1, said)


def ratings_of(said: np.ndarray, of: Levels) -> Ratings:
    raters, rows = np.nonzero(said >= 0)
    return Ratings(rows, raters, said[raters, rows], np.arange(said.shape[1]), of)


@KINDS
def test_cohens_kappa_is_scikit_learns(of: Levels) -> None:
    first, second = drawn(of, 2, 70, 1)
    found = cohen(first, second, np.arange(70), of)
    weights = "quadratic" if of.are_grades else None
    assert found.value == pytest.approx(cohen_kappa_score(first, second, labels=range(len(of.names)), weights=weights))
    assert found.low < found.value < found.high


def test_cohens_kappa_by_hand() -> None:
    """20 of 50 rows first for both, 15 second for both, 5 and 10 the other two: .7 observed, .5 by chance."""
    first = np.repeat([0, 0, 2, 2], [20, 5, 10, 15])
    second = np.repeat([0, 2, 0, 2], [20, 5, 10, 15])
    assert cohen(first, second, np.arange(50), VERDICTS).value == pytest.approx(0.4)


def test_a_row_with_more_votes_weighs_no_more() -> None:
    """Two votes of a half for one row are one vote."""
    once = cohen(np.array([0, 2, 0]), np.array([0, 2, 2]), np.arange(3), VERDICTS)
    rows = np.array([0, 0, 1, 2])
    twice = cohen(np.array([0, 0, 2, 0]), np.array([0, 0, 2, 2]), rows, VERDICTS, np.array([0.5, 0.5, 1, 1]))
    assert twice.value == pytest.approx(once.value)
    assert twice.units == 3


@KINDS
def test_krippendorffs_alpha_of_unequal_numbers_of_votes_is_the_packages(of: Levels) -> None:
    said = drawn(of, 4, 60, 2, missing=0.3)
    table = ratings_of(said, of)
    values = np.where(said >= 0, np.asarray(of.values)[said], np.nan)
    level = "ordinal" if of.are_grades else "nominal"
    wanted = krippendorff.alpha(values, value_domain=of.values, level_of_measurement=level)
    found = krippendorff_alpha(table.counts, table.units, of)
    assert found.value == pytest.approx(wanted)
    assert found.rows == (said >= 0).sum(0)[(said >= 0).sum(0) > 1].size
    assert found.low < found.value < found.high


@KINDS
def test_fleiss_kappa_is_that_of_statsmodels_and_of_equal_numbers_of_votes_only(of: Levels) -> None:
    said = drawn(of, 3, 60, 3)
    table = ratings_of(said, of)
    found, why = fleiss(table.counts, table.units)
    assert (found.value, why) == (pytest.approx(fleiss_kappa(aggregate_raters(said.T)[0])), "")
    said[0, 0] = -1
    table = ratings_of(said, of)
    found, why = fleiss(table.counts, table.units)
    assert found.value is None
    assert why.startswith("Fleiss' kappa needs equally many votes on each row, and they are 2 to 3")


def test_kappas_of_two_raters_are_of_the_rows_that_both_rated_and_of_pairs_with_enough_of_them() -> None:
    said = drawn(VERDICTS, 4, 40, 4, missing=0.2)
    said[3, 5:] = -1
    found, used, shared = mean_of_pairs(ratings_of(said, VERDICTS), least=10, most=60, groups=50)
    wanted = []
    for a, b in ((0, 1), (0, 2), (1, 2)):
        both = (said[a] >= 0) & (said[b] >= 0)
        wanted.append(cohen_kappa_score(said[a][both], said[b][both], labels=[0, 1, 2]))
    assert (used, shared) == (3, 3)
    assert found.value == pytest.approx(np.mean(wanted))
    assert mean_of_pairs(ratings_of(said, VERDICTS), 10, 2, 50)[1:] == (2, 3)


def test_one_level_alone_has_no_coefficient() -> None:
    same = np.zeros(20, dtype=int)
    assert cohen(same, same, np.arange(20), VERDICTS).value is None
    counts = np.tile([3.0, 0, 0], (20, 1))
    assert krippendorff_alpha(counts, np.arange(20), VERDICTS).value is None
    assert fleiss(counts, np.arange(20))[0].value is None


def test_a_kappa_of_1_has_a_lower_limit_from_the_disagreement_that_may_be_unseen() -> None:
    """Of 40 rows without disagreement up to 8.8% may disagree (Wilson), where chance gives 50%."""
    both = np.repeat([0, 2], 20)
    found = cohen(both, both, np.arange(40), VERDICTS)
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(1 - share(np.zeros(40)).high / 0.5)
    assert found.low == pytest.approx(0.8248, abs=1e-3)


def test_one_prompt_has_no_interval() -> None:
    found = cohen(np.array([0, 2, 0]), np.array([0, 2, 2]), np.zeros(3, dtype=int), VERDICTS)
    assert found.value == pytest.approx(0.4)
    assert found.low is None


def test_without_the_packages_one_line_says_how_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "krippendorff", None)
    with pytest.raises(InputError, match=r"^krippendorff is not installed; .*: pip install 'lmgym\[agree\]'$"):
        require_packages()


def coverage(statistic: Callable[..., Estimate], prompts: int, replies: int, samples: int, truth: float) -> float:
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(samples):
        found = statistic(*two_raters(rng, prompts, replies), np.repeat(np.arange(prompts), replies))
        held += found.low is not None and found.low <= truth <= found.high
    return held / samples


def two_raters(rng: np.random.Generator, prompts: int, replies: int) -> tuple[np.ndarray, np.ndarray]:
    """Levels of two raters, who agree more on some prompts than on others."""
    true = rng.choice([0, 2], size=prompts * replies)
    clear = np.repeat(rng.choice([0.95, 0.5], size=prompts), replies)
    first, second = (np.where(rng.random(len(true)) < clear, true, rng.choice([0, 2], size=len(true))) for _ in "ab")
    return first, second


# both say the row's own level, or a level at random: agreement beyond chance is the mean of clear squared
TRUTH = (0.95**2 + 0.5**2) / 2


def kappa(first: np.ndarray, second: np.ndarray, units: np.ndarray) -> Estimate:
    return cohen(first, second, units, VERDICTS)


@pytest.mark.parametrize(("prompts", "replies"), [(30, 1), (30, 4)])
def test_the_interval_of_cohens_kappa_covers(prompts: int, replies: int) -> None:
    assert coverage(kappa, prompts, replies, 40, TRUTH) >= 0.88


@pytest.mark.slow
@pytest.mark.parametrize(("prompts", "replies"), [(30, 1), (60, 1), (30, 4)])
def test_the_interval_of_cohens_kappa_covers_91_percent(prompts: int, replies: int) -> None:
    assert coverage(kappa, prompts, replies, 300, TRUTH) >= 0.91


def test_the_interval_of_krippendorffs_alpha_covers() -> None:
    def alpha(first: np.ndarray, second: np.ndarray, units: np.ndarray) -> Estimate:
        counts = np.zeros((len(first), 3))
        for side in (first, second):
            np.add.at(counts, (np.arange(len(first)), side), 1)
        return krippendorff_alpha(counts, units, VERDICTS)

    assert coverage(alpha, 40, 1, 60, TRUTH) >= 0.88
