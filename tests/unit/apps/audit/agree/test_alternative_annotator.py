"""The alternative annotator test by hand, and beside code from the paper's text; its interval covers."""

import math

import numpy as np
import pytest
import scipy.stats

from lmgym.apps.audit.agree.alternative_annotator import AlternativeAnnotator, alternative_annotator, comparisons
from lmgym.apps.audit.agree.coefficients import Ratings
from lmgym.apps.audit.agree.levels import VERDICTS, Levels

GRADES = Levels(("1", "2", "3", "5"), (1.0, 2.0, 3.0, 5.0), are_ordered=True, are_numbers=True)

JUDGES = [(0, 0.95, 0.1), (0, 0.8, 0.1), (1, 0.6, 0.2), (2, 0.5, 0.1), (3, 0.8, 0.1)]
"""(seed, how often the judge is right, epsilon)"""


def ratings_of(said: np.ndarray, of: Levels, units: np.ndarray | None = None) -> Ratings:
    """Of levels[raters, rows], -1 where a rater said nothing."""
    raters, rows = np.nonzero(said >= 0)
    return Ratings(rows, raters, said[raters, rows], np.arange(said.shape[1]) if units is None else units, of)


def drawn(of: Levels, raters: int, rows: int, seed: int, missing: float, right: float = 0.8) -> tuple:
    """(levels[raters, rows] of raters who are right in 6 of 10 votes, of a judge who is so more often)."""
    rng = np.random.default_rng(seed)
    number = len(of.names)
    true = rng.integers(number, size=rows)
    said = np.where(rng.random((raters, rows)) < 0.6, true, rng.integers(number, size=(raters, rows)))
    judge = np.where(rng.random(rows) < right, true, rng.integers(number, size=rows))
    judge[rng.random(rows) < missing / 3] = -1
    return np.where(rng.random((raters, rows)) < missing, -1, said), judge


def by_the_paper(said: np.ndarray, judge: np.ndarray, of: Levels, epsilon: float) -> tuple[float, float, list[float]]:
    """(winning rate, average advantage probability, p-values), written from the paper's text, row by row."""

    def score(level: int, others: list[int]) -> float:
        if of.are_grades:
            return -math.sqrt(sum((of.values[level] - of.values[k]) ** 2 for k in others) / len(others))
        return sum(level == k for k in others) / len(others)

    p_values, advantages = [], []
    for j in range(len(said)):
        judges, owns = [], []
        for i in range(said.shape[1]):
            others = [int(said[k, i]) for k in range(len(said)) if k != j and said[k, i] >= 0]
            if said[j, i] < 0 or judge[i] < 0 or not others:
                continue
            of_judge, own = score(int(judge[i]), others), score(int(said[j, i]), others)
            judges.append(of_judge >= own or math.isclose(of_judge, own))
            owns.append(own >= of_judge or math.isclose(of_judge, own))
        d = np.array(owns, float) - np.array(judges, float)
        p_values.append(scipy.stats.ttest_1samp(d, epsilon, alternative="less").pvalue)
        advantages.append(np.mean(judges))
    m = len(p_values)  # Benjamini and Yekutieli: the largest k with p_(k) <= k .05 / (m sum of 1/i)
    ordered = sorted(p_values)
    bound = 0.05 / (m * sum(1 / i for i in range(1, m + 1)))
    most = max([k for k in range(1, m + 1) if ordered[k - 1] <= k * bound], default=0)
    return most / m, float(np.mean(advantages)), p_values


@pytest.mark.parametrize("of", [VERDICTS, GRADES], ids=["verdicts with ties", "grades"])
@pytest.mark.parametrize(("seed", "right", "epsilon"), JUDGES)
def test_the_test_is_that_of_the_paper(of: Levels, seed: int, right: float, epsilon: float) -> None:
    said, judge = drawn(of, 5, 90, seed, missing=0.25, right=right)
    found = alternative_annotator(ratings_of(said, of), judge, epsilon)
    winning_rate, advantage, p_values = by_the_paper(said, judge, of, epsilon)
    assert [one.p for one in found.raters] == pytest.approx(p_values)
    assert found.winning_rate.value == pytest.approx(winning_rate)
    assert found.advantage.value == pytest.approx(advantage)
    assert found.epsilon == epsilon


def test_the_drawn_judges_of_that_test_win_against_all_some_and_none() -> None:
    rates = {
        by_the_paper(*drawn(VERDICTS, 5, 90, seed, 0.25, right), VERDICTS, epsilon)[0]
        for seed, right, epsilon in JUDGES
    }
    assert {0.0, 1.0} <= rates
    assert any(0 < rate < 1 for rate in rates)


def test_one_row_by_hand() -> None:
    """Raters say first, first, second, the judge first. Beside rater 2 (second), the judge agrees with both others."""
    judges, owns, counted = comparisons(ratings_of(np.array([[0], [0], [2]]), VERDICTS), np.array([0]))
    assert judges.tolist() == [1, 1, 1]
    assert owns.tolist() == [1, 1, 0]
    assert counted.all()
    judges, owns, _ = comparisons(ratings_of(np.array([[0], [0], [2]]), VERDICTS), np.array([2]))
    assert judges.tolist() == [1, 1, 1]  # beside the first: half of (first, second) say what either says
    assert owns.tolist() == [1, 1, 1]


def test_grades_are_compared_by_their_distance() -> None:
    """Others say 1 and 5: root of 8 for a 3, of 10 for a 2."""
    judges, owns, _ = comparisons(ratings_of(np.array([[0], [3], [1]]), GRADES), np.array([2]))
    assert (judges[2], owns[2]) == (1, 0)


def test_a_row_without_a_verdict_and_a_vote_without_others_do_not_count() -> None:
    said = np.array([[0, 0, -1], [0, -1, 2]])
    assert comparisons(ratings_of(said, VERDICTS), np.array([-1, 0, 2]))[2].tolist() == [False] * 4


def test_raters_with_few_rows_are_left_out_and_two_raters_have_no_result() -> None:
    said, judge = drawn(VERDICTS, 4, 60, 5, missing=0.0)
    said[3, 20:] = -1
    found = alternative_annotator(ratings_of(said, VERDICTS), judge, 0.1)
    assert ([one.rater for one in found.raters], found.left_out) == ([0, 1, 2], 1)
    two = alternative_annotator(ratings_of(said[:2], VERDICTS), judge, 0.1)
    assert len(two.raters) == 2
    assert two.passes is None
    assert two.winning_rate.low is None
    alone = alternative_annotator(ratings_of(said[:1], VERDICTS), judge, 0.1)
    assert (alone.raters, alone.left_out) == ((), 1)


def test_a_judge_who_is_always_as_near_wins_and_one_who_never_is_loses() -> None:
    same = np.tile(np.repeat([0, 2], 20), (3, 1))
    won = alternative_annotator(ratings_of(same, VERDICTS), same[0], 0.1)
    assert (won.passes, won.winning_rate.value, won.advantage.value) == (True, 1.0, pytest.approx(1.0))
    lost = alternative_annotator(ratings_of(same, VERDICTS), 2 - same[0], 0.1)
    assert (lost.passes, lost.winning_rate.value, lost.advantage.value) == (False, 0.0, 0.0)
    assert lost.winning_rate.high < 0.6


def test_rows_of_one_prompt_are_no_more_evidence_than_the_prompt() -> None:
    """Each row five times: as before where the prompt is the unit, more certain where each row were."""
    said, judge = drawn(VERDICTS, 3, 40, 6, missing=0.0, right=0.6)
    five, judge_five = np.repeat(said, 5, axis=1), np.repeat(judge, 5)
    once = [one.p for one in alternative_annotator(ratings_of(said, VERDICTS), judge, 0.1).raters]
    units = np.repeat(np.arange(40), 5)
    together = [one.p for one in alternative_annotator(ratings_of(five, VERDICTS, units), judge_five, 0.1).raters]
    apart = [one.p for one in alternative_annotator(ratings_of(five, VERDICTS), judge_five, 0.1).raters]
    assert together == pytest.approx(once)
    assert all(min(p, 1 - p) < min(q, 1 - q) for p, q in zip(apart, once, strict=True))


def one_sample(rng: np.random.Generator, raters: int, rows: int) -> AlternativeAnnotator:
    """Of raters who differ in how often they are right, and rows that differ in how clear they are."""
    right, clear = rng.uniform(0.4, 0.9, size=(raters, 1)), rng.choice([0.3, 1.0], size=rows)
    true = rng.choice([0, 2], size=rows)
    said = np.where(rng.random((raters, rows)) < right * clear, true, rng.choice([0, 2], size=(raters, rows)))
    judge = np.where(rng.random(rows) < 0.6 * clear, true, rng.choice([0, 2], size=rows))
    return alternative_annotator(ratings_of(said, VERDICTS), judge, 0.1)


# the mean of 100 samples of 1,000 rows
@pytest.mark.parametrize(("raters", "truth"), [(4, 0.798), (12, 0.797)])
def test_the_interval_of_the_advantage_covers_other_raters_and_rows(raters: int, truth: float) -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(60):
        found = one_sample(rng, raters, 60).advantage
        held += found.low <= truth <= found.high
    assert held / 60 >= 0.88
