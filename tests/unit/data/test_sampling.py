"""Rows by group: against a loop over a dict and numbers worked out by hand, chi-square for what is random."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import ArrayLike
from scipy import stats

from lmgym.data.sampling import Mode, limit_per_group, ordered_sample, split_by_group

IDS = [7, 3, 7, 7, 3, 9, 7]
INT64 = np.iinfo(np.int64)


def first_rows(group_ids: list, limit: int) -> list[int]:
    """The definition: the first rows of every group, by a loop."""
    counts: Counter = Counter()
    kept = []
    for row, group in enumerate(group_ids):
        if counts[group] < limit:
            counts[group] += 1
            kept.append(row)
    return kept


def last_rows(group_ids: list, limit: int) -> list[int]:
    last = len(group_ids) - 1
    return [last - row for row in first_rows(group_ids[::-1], limit)][::-1]


def random_ids(rng: np.random.Generator) -> np.ndarray:
    """1 to 300 ids of few or many groups, near each other or all over 64 bits."""
    groups = rng.integers(1, 60)
    names = [
        np.arange(groups) - 20,
        rng.integers(INT64.min, INT64.max, groups),
        np.array([INT64.min, INT64.max, 0])[np.arange(groups) % 3],
        2 ** (np.arange(groups) % 62),
    ][rng.integers(4)]
    return names[rng.integers(groups, size=rng.integers(1, 300))]


def frequencies(group_ids: ArrayLike, limit: int, draws: int) -> Counter:
    """Counts of each set of kept rows over seeds."""
    return Counter(tuple(limit_per_group(group_ids, limit, "random", seed).tolist()) for seed in range(draws))


def test_seven_rows_give_the_rows_worked_out_by_hand() -> None:
    assert limit_per_group(IDS, 2).tolist() == [0, 1, 2, 4, 5]
    assert limit_per_group(IDS, 2, "reverse").tolist() == [1, 3, 4, 5, 6]
    assert limit_per_group(IDS, 1).tolist() == [0, 1, 5]
    assert limit_per_group(IDS, 1, "reverse").tolist() == [4, 5, 6]
    # groups 3 and 9 are within the limit; of group 7 two out of rows 0, 2, 3 and 6
    kept = limit_per_group(IDS, 2, "random", seed=3).tolist()
    assert kept == sorted(kept)
    assert set(kept) > {1, 4, 5}
    assert len(set(kept) & {0, 2, 3, 6}) == 2


@pytest.mark.parametrize("mode", ["unchanged", "reverse", "random"])
def test_a_limit_of_zero_keeps_nothing_and_one_above_every_group_keeps_all(mode: Mode) -> None:
    assert limit_per_group(IDS, 0, mode).tolist() == []
    assert limit_per_group([], 2, mode).tolist() == []
    for limit in (4, 6, 7, 8, 1000):
        assert limit_per_group(IDS, limit, mode).tolist() == list(range(7))
    assert limit_per_group([5], 1, mode).tolist() == [0]


@pytest.mark.parametrize("mode", ["unchanged", "reverse", "random"])
def test_indices_are_int64_whatever_the_ids(mode: Mode) -> None:
    for ids in (IDS, [], np.array(IDS, dtype=np.int8), np.array(IDS, dtype=np.uint64), list("abc")):
        assert limit_per_group(ids, 0, mode).dtype == np.int64
        assert limit_per_group(ids, 1, mode).dtype == np.int64


def test_first_and_last_rows_are_those_of_a_loop_over_a_dict() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        ids, limit = random_ids(rng), int(rng.integers(1, 12))
        assert limit_per_group(ids, limit).tolist() == first_rows(ids.tolist(), limit)
        assert limit_per_group(ids, limit, "reverse").tolist() == last_rows(ids.tolist(), limit)


def test_random_rows_are_as_many_of_every_group_as_the_first_ones() -> None:
    rng = np.random.default_rng(1)
    for seed in range(300):
        ids, limit = random_ids(rng), int(rng.integers(1, 12))
        kept = limit_per_group(ids, limit, "random", seed)
        assert np.all(np.diff(kept) > 0)
        assert Counter(ids[kept].tolist()) == Counter(ids[first_rows(ids.tolist(), limit)].tolist())


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "int64", "uint64", ">i8"])
def test_integers_of_every_width_are_distinguished_at_both_ends(dtype: str) -> None:
    info = np.iinfo(dtype)
    ids = [info.min, info.max, info.max - 1, info.min, info.max, info.min + 1, info.min]
    assert limit_per_group(np.array(ids, dtype=dtype), 1).tolist() == [0, 1, 2, 5]
    assert limit_per_group(np.array(ids, dtype=dtype), 2, "reverse").tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("other", [6, INT64.min])
def test_every_subset_of_a_group_is_as_likely_as_any_other(other: int) -> None:
    found = frequencies([5, 5, 5, other, 5, 5], 2, draws=3000)
    expected = {tuple(sorted((*pair, 3))) for pair in combinations([0, 1, 2, 4, 5], 2)}
    assert set(found) == expected
    assert stats.chisquare(list(found.values())).pvalue > 0.01


def test_groups_draw_independently() -> None:
    found = frequencies([1, 1, 2, 2], 1, draws=2000)
    assert len(found) == 4
    assert stats.chisquare(list(found.values())).pvalue > 0.01


def test_the_seed_decides_only_the_random_rows() -> None:
    ids = np.arange(1000) % 10
    kept = limit_per_group(ids, 20, "random", seed=1)
    assert kept.tolist() == limit_per_group(ids, 20, "random", seed=1).tolist()
    assert kept.tolist() != limit_per_group(ids, 20, "random", seed=2).tolist()
    assert limit_per_group(ids, 20, seed=1).tolist() == limit_per_group(ids, 20, seed=2).tolist()


def test_strings_group_like_the_numbers_they_stand_for() -> None:
    numbers = np.random.default_rng(3).integers(40, size=500)
    names = [f"user {number}" for number in numbers]
    for ids in (names, np.array(names), np.array(names, dtype=object)):
        for mode in ("unchanged", "reverse"):
            assert limit_per_group(ids, 3, mode).tolist() == limit_per_group(numbers, 3, mode).tolist()
        assert len(limit_per_group(ids, 3, "random")) == 120


def test_strings_that_differ_late_or_only_in_their_end_are_different_groups() -> None:
    ids = ["a" * 200_000 + "b", "a" * 200_000 + "c", "a", "a ", "A", "a", ""]
    assert limit_per_group(ids, 1).tolist() == [0, 1, 2, 3, 4, 6]


def test_the_ids_are_not_changed() -> None:
    ids = np.array([3, 1, 3, 2], dtype=np.uint64)
    limit_per_group(ids, 1, "random")
    split_by_group(ids, 1, 1)
    assert ids.tolist() == [3, 1, 3, 2]


def test_meaningless_limits_are_refused() -> None:
    with pytest.raises(ValueError, match="mode='first'; needed: one of unchanged, reverse, random"):
        limit_per_group(IDS, 2, "first")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="limit=-1; needed: 0 or more"):
        limit_per_group(IDS, -1)


def test_splits_of_random_tables_keep_their_promises() -> None:
    rng = np.random.default_rng(4)
    done = 0
    while done < 1000:
        ids = random_ids(rng) if done % 2 else np.repeat(np.arange(8), rng.integers(1, 100, size=8) ** 2 // 100 + 1)
        if len(np.unique(ids)) < 2:
            continue
        done += 1
        asked = int(rng.integers(2, len(ids) + 1)) if done % 3 else len(ids)
        train_size = int(rng.integers(1, asked))
        train, evaluation = split_by_group(ids, train_size, asked - train_size, seed=done)
        largest = max(Counter(ids.tolist()).values())
        assert len(train) > 0
        assert len(evaluation) > 0
        assert abs(len(train) - train_size) <= largest
        assert abs(len(evaluation) - (asked - train_size)) <= largest
        assert np.all(np.diff(train) > 0)
        assert np.all(np.diff(evaluation) > 0)
        sides = set(ids[train].tolist()), set(ids[evaluation].tolist())
        assert not sides[0] & sides[1]
        # whole groups alone: as many rows of each as there are
        assert np.isin(ids, list(sides[0])).sum() == len(train)
        assert np.isin(ids, list(sides[1])).sum() == len(evaluation)
        if asked == len(ids):
            assert sorted([*train, *evaluation]) == list(range(len(ids)))


def test_rows_that_are_each_a_group_meet_the_sizes_exactly() -> None:
    train, evaluation = split_by_group(np.arange(1000), 700, 200)
    assert (len(train), len(evaluation), len(set(train) & set(evaluation))) == (700, 200, 0)
    train, evaluation = split_by_group(np.arange(1000), 999, 1)
    assert (len(train), len(evaluation)) == (999, 1)


def test_groups_of_three_rows_go_to_the_nearest_cut() -> None:
    ids = np.repeat(np.arange(10), 3)
    # 10 rows: 9 are nearer than 12. From there 5 rows end at 14, or 15 in all; 15 is the nearest end of both
    train, evaluation = split_by_group(ids, 10, 5)
    assert (len(train), len(evaluation)) == (9, 6)
    # 11 rows: 12 are nearer, and 5 rows from there end at 17; 18 is nearest
    train, evaluation = split_by_group(ids, 11, 5)
    assert (len(train), len(evaluation)) == (12, 6)


def test_a_group_above_all_others_leaves_neither_side_empty() -> None:
    ids = np.array([0] * 99 + [1])
    for seed in range(10):
        sides = split_by_group(ids, 50, 50, seed)
        assert sorted(map(len, sides)) == [1, 99]


def test_every_group_is_as_likely_to_be_drawn_for_a_side() -> None:
    drawn = Counter(int(split_by_group(np.arange(10), 1, 1, seed)[1][0]) for seed in range(2000))
    assert len(drawn) == 10
    assert stats.chisquare(list(drawn.values())).pvalue > 0.01


@pytest.mark.parametrize("names", [np.arange(50), np.array([f"user {i}" for i in range(50)])])
def test_the_seed_decides_the_groups_whatever_the_order_of_the_rows(names: np.ndarray) -> None:
    rng = np.random.default_rng(5)
    ids = names[rng.integers(50, size=400)]
    shuffled = rng.permutation(ids)

    def groups(group_ids: np.ndarray, seed: int) -> list[set]:
        return [set(group_ids[side].tolist()) for side in split_by_group(group_ids, 200, 100, seed)]

    assert groups(ids, 1) == groups(ids, 1)
    assert groups(ids, 1) == groups(shuffled, 1)
    assert groups(ids, 1) != groups(ids, 2)


@pytest.mark.parametrize(
    ("ids", "sizes", "message"),
    [
        ([1, 2, 3], (3, 1), "need 4 rows; found 3"),
        ([1, 1, 1], (1, 1), "1 group in 3 rows; needed at least 2"),
        ([1, 2, 3], (0, 1), "train_size=0, eval_size=1; needed: at least 1 row"),
        ([1, 2, 3], (1, 0), "train_size=1, eval_size=0; needed: at least 1 row"),
        ([1, 2, 3], (3, -1), "train_size=3, eval_size=-1; needed: at least 1 row"),
        ([], (1, 1), "need 2 rows; found 0"),
    ],
)
def test_impossible_splits_are_refused(ids: list[int], sizes: tuple[int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split_by_group(ids, *sizes)


def test_samples_are_distinct_increasing_and_seeded() -> None:
    for rows, samples in ((10, 3), (100_000, 5), (100_000, 99_999), (7, 7), (7, 0), (0, 0)):
        sample = ordered_sample(rows, samples, seed=1)
        assert len(sample) == samples
        assert sample.dtype == np.int64
        assert np.all(np.diff(sample) > 0)
        assert np.all((sample >= 0) & (sample < rows))
        assert sample.tolist() == ordered_sample(rows, samples, seed=1).tolist()
    assert ordered_sample(7, 7).tolist() == list(range(7))
    assert ordered_sample(1000, 10, seed=1).tolist() != ordered_sample(1000, 10, seed=2).tolist()


def test_every_sample_is_as_likely_as_any_other() -> None:
    found = Counter(tuple(ordered_sample(5, 2, seed).tolist()) for seed in range(2000))
    assert set(found) == set(combinations(range(5), 2))
    assert stats.chisquare(list(found.values())).pvalue > 0.01


@pytest.mark.parametrize(("rows", "samples"), [(3, 4), (3, -1), (-2, 0)])
def test_impossible_samples_are_refused(rows: int, samples: int) -> None:
    with pytest.raises(ValueError, match=f"n_samples={samples} of n_rows={rows}"):
        ordered_sample(rows, samples)
