"""Agreement of two scorers on the order of replies, by hand and against scipy."""

import numpy as np
import pytest
from scipy import stats

from lmgym.scoring.agreement import pair_agreement


def test_pairs_of_one_prompt_count_and_ties_are_a_half() -> None:
    # prompt a: (1, 2), (1, 3), (2, 3) by the first; the second orders two alike, and ties one
    first, second = [1.0, 2.0, 3.0, 9.0, 5.0, 5.0], [1.0, 2.0, 2.0, -9.0, 1.0, 0.0]
    assert pair_agreement(first, second, ["a", "a", "a", "alone", "b", "b"]) == pytest.approx((2 + 0.5 + 0.5) / 4)


def test_with_a_reply_a_prompt_all_pairs_count() -> None:
    rng = np.random.default_rng(0)
    first = rng.normal(size=40)
    second = first + rng.normal(size=40)
    found = pair_agreement(first.tolist(), second.tolist(), list(range(40)))
    assert found == pytest.approx((1 + stats.kendalltau(first, second).statistic) / 2)
    assert found == pair_agreement(first.tolist(), second.tolist())
    assert pair_agreement(first.tolist(), (-second).tolist()) == pytest.approx(1 - found)


def test_without_a_pair_there_is_none() -> None:
    assert pair_agreement([], []) is None
    assert pair_agreement([1.0], [2.0], ["a"]) is None
    assert pair_agreement([1.0, 1.0], [2.0, 3.0]) == 0.5
