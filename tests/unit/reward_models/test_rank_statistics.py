"""Rank statistics within groups: by hand, and against scipy and scikit-learn group by group."""

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from reward_models.metrics.rank_statistics import (
    average_ranks,
    dense_ranks,
    finite_column,
    group_codes,
    group_kendall,
    group_ranks,
    group_spearman,
    ordered_pairs,
    spearman,
    tie_blocks,
)


def random_groups(seed: int, rows: int = 400, groups: int = 40) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two tied columns and codes without gaps, in no order, a few of them of one row."""
    rng = np.random.default_rng(seed)
    a, b = rng.integers(6, size=(2, rows)) / 3
    codes = np.unique(rng.geometric(0.1, size=rows) % groups, return_inverse=True)[1]
    return a, b, codes


def test_ranks_within_two_groups_are_as_worked_out_by_hand() -> None:
    # group 0: 5, 5, 1 and group 1: 2, 9
    found = group_ranks(np.array([5.0, 2.0, 5.0, 9.0, 1.0]), np.array([0, 1, 0, 1, 0]))
    assert found.tolist() == [2.5, 1, 2.5, 2, 1]


def test_right_pairs_of_two_groups_are_as_worked_out_by_hand() -> None:
    # group 0: up 3, 1 over down 1, 0: 3 right and a tie; group 1: up 0 over down 2; the last row is neither
    groups = np.array([0, 1, 0, 0, 1, 0, 1])
    blocks = tie_blocks(dense_ranks(np.array([3.0, 0.0, 1.0, 1.0, 2.0, 0.0, 9.0])), groups)
    up = np.array([1, 1, 1, 0, 0, 0, 0], dtype=bool)
    down = np.array([0, 0, 0, 1, 1, 1, 0], dtype=bool)
    right, pairs = ordered_pairs(blocks, up, down)
    assert (right.tolist(), pairs.tolist()) == ([3.5, 0], [4, 1])


def test_tau_b_of_two_groups_is_as_worked_out_by_hand() -> None:
    # group 0: a 1 2 3 with b 1 3 2: 2 pairs agree, 1 does not; group 1: a 1 1 2 with b 1 2 3: 2 / sqrt(2 * 3)
    a, b = np.array([1.0, 1.0, 2.0, 1.0, 3.0, 2.0]), np.array([1.0, 1.0, 3.0, 2.0, 2.0, 3.0])
    found = group_kendall(a, b, np.array([0, 1, 0, 1, 0, 1]))
    assert found == pytest.approx([1 / 3, 2 / math.sqrt(6)])


@pytest.mark.parametrize("seed", range(5))
def test_ranks_of_all_values_and_of_each_group_are_scipys(seed: int) -> None:
    a, b, codes = random_groups(seed)
    assert average_ranks(a).tolist() == stats.rankdata(a).tolist()
    assert spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)
    found = group_ranks(a, codes)
    for code in range(codes.max() + 1):
        assert found[codes == code].tolist() == stats.rankdata(a[codes == code]).tolist()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("ours", "theirs"), [(group_spearman, stats.spearmanr), (group_kendall, stats.kendalltau)], ids=["rho", "tau"]
)
def test_correlations_of_groups_are_scipys_and_nan_where_it_has_none(ours, theirs, seed: int) -> None:
    a, b, codes = random_groups(seed)
    a[codes == 3], b[codes == 4] = 0.5, 0.5
    found = ours(a, b, codes)
    undefined = 0
    for code in range(codes.max() + 1):
        x, y = a[codes == code], b[codes == code]
        if len(set(x)) > 1 and len(set(y)) > 1:
            assert found[code] == pytest.approx(theirs(x, y).statistic)
        else:
            assert math.isnan(found[code])
            undefined += 1
    assert 2 <= undefined < codes.max()


@pytest.mark.parametrize("seed", range(5))
def test_right_pairs_of_a_group_are_its_auc_by_scikit_learn(seed: int) -> None:
    a, b, codes = random_groups(seed)
    flag = b > 0.7
    right, pairs = ordered_pairs(tie_blocks(dense_ranks(a), codes), flag, ~flag)
    for code in np.flatnonzero(pairs):
        rows = codes == code
        assert pairs[code] == flag[rows].sum() * (~flag[rows]).sum()
        assert right[code] / pairs[code] == pytest.approx(roc_auc_score(flag[rows], a[rows]))
    assert (pairs == 0).sum() == sum(len(set(flag[codes == code])) == 1 for code in range(codes.max() + 1)) > 0


def test_values_whose_difference_overflows_are_still_in_order() -> None:
    a = np.array([-1e308, 1e308, 5e-324])
    assert group_kendall(a, np.array([1.0, 3.0, 2.0]), np.zeros(3, dtype=int)).tolist() == [1]


@pytest.mark.parametrize(
    "ids",
    [
        [7, -2, 7, 7, -2],
        ["x", "yyyy", "x", "x", "yyyy"],
        np.array(["x", "y", "x", "x", "y"], dtype=object),
        np.array([9, 3, 9, 9, 3], dtype=np.uint64),
    ],
)
def test_ids_of_integers_and_strings_become_codes_without_gaps(ids) -> None:
    codes = group_codes("users", ids)
    assert codes.dtype == np.int64
    assert sorted(set(codes.tolist())) == [0, 1]
    assert (codes == codes[0]).tolist() == [True, False, True, True, False]


@pytest.mark.parametrize("ids", [["a", None, "b", None], [1.0, math.nan, 2.0, math.nan]])
def test_null_ids_are_counted_and_located(ids: list) -> None:
    with pytest.raises(ValueError, match="users holds 2 null of 4 ids, the first at index 1"):
        group_codes("users", ids)


def test_values_that_are_not_finite_are_counted_and_located() -> None:
    with pytest.raises(ValueError, match="rank holds 2 non-finite of 3 values, the first inf at index 1"):
        finite_column("rank", [0.0, math.inf, math.nan])
