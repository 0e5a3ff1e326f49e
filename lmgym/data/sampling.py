"""Samples of row indices for tables with many rows per user or conversation: limits and splits by group.

Design decisions:
- Functions take ids and return row indices, never rows.
- Rows are grouped by numpy's stable argsort, of shuffled rows where the order within a group is to be random.
- Strings become integers through a dict: a numpy sort of strings takes more time, and pads each to the longest.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

Mode = Literal["unchanged", "reverse", "random"]
Rows = NDArray[np.int64]

STRING_BLOCK = 65_536  # array entries held as Python objects at once


def ordered_sample(n_rows: int, n_samples: int, seed: int = 0) -> NDArray[np.int64]:
    """`n_samples` distinct indices below `n_rows`, increasing, every such set as likely as any other.

    Raises ValueError for a negative number of samples and for more samples than rows.
    """
    if not 0 <= n_samples <= n_rows:
        raise ValueError(f"n_samples={n_samples} of n_rows={n_rows}; needed: between 0 and the number of rows")
    sample = np.random.default_rng(seed).choice(n_rows, n_samples, replace=False, shuffle=False)
    sample.sort()
    return sample


def limit_per_group(group_ids: ArrayLike, limit: int, mode: Mode = "unchanged", seed: int = 0) -> Rows:
    """Indices of at most `limit` rows of every group, increasing.

    `group_ids`: [rows], integers or strings. Of a group with more rows, mode "unchanged" keeps the first ones,
    "reverse" the last ones and "random" a uniformly random subset that depends on the seed and all of `group_ids`.
    Time is that of a sort.
    Raises ValueError for another mode, a negative limit, ids that are missing and ids of another kind.
    """
    if mode not in get_args(Mode):
        raise ValueError(f"mode={mode!r}; needed: one of {', '.join(get_args(Mode))}")
    if limit < 0:
        raise ValueError(f"limit={limit}; needed: 0 or more rows of every group; 0 keeps nothing")
    ids = _integer_ids(group_ids)
    if not limit or not len(ids):
        return np.empty(0, dtype=np.int64)
    rows, groups = _rows_by_group(ids, np.random.default_rng(seed) if mode == "random" else None)
    # a row has `limit` rows of its group before (after) it exactly if the row that far away is in the group
    other = groups[limit:] != groups[:-limit]
    keep = np.ones(len(rows), dtype=bool)
    keep[slice(None, -limit) if mode == "reverse" else slice(limit, None)] = other
    return np.sort(rows[keep])


def split_by_group(group_ids: ArrayLike, train_size: int, eval_size: int, seed: int = 0) -> tuple[Rows, Rows]:
    """(training, evaluation) row indices, each increasing, without a group on both sides.

    `group_ids`: [rows], integers or strings; sizes are in rows. Whole groups are drawn in random order, first for
    training and then for evaluation, so each side has its size to within the rows of the largest group, and at least
    one group. Remaining groups are on neither side; sizes that add up to all rows leave none. The result depends on
    the seed, the sizes and the number of rows of each id, not on the order of the rows. Raises ValueError for sizes
    below 1 or above the number of rows, a single group, and ids that `limit_per_group` refuses.
    """
    ids = _integer_ids(group_ids, by_value=True)
    if train_size < 1 or eval_size < 1:
        raise ValueError(f"train_size={train_size}, eval_size={eval_size}; needed: at least 1 row on each side")
    if train_size + eval_size > len(ids):
        raise ValueError(
            f"train_size={train_size} and eval_size={eval_size} need {train_size + eval_size} rows; found {len(ids)}"
            "; ask for less or bring more rows"
        )
    rows, groups = _rows_by_group(ids)
    sizes = np.diff(np.flatnonzero(np.concatenate([[True], groups[1:] != groups[:-1], [True]])))
    if len(sizes) == 1:
        raise ValueError(
            f"1 group in {len(ids)} rows; needed at least 2, since a group stays on one side; group by something finer"
        )
    drawn = np.random.default_rng(seed).permutation(len(sizes))
    train_groups, all_groups = _cuts(np.cumsum(sizes[drawn]), train_size, eval_size)
    side = np.zeros(len(sizes), dtype=np.int8)
    side[drawn[:train_groups]] = 1
    side[drawn[train_groups:all_groups]] = 2
    side_of_row = np.empty(len(rows), dtype=np.int8)
    side_of_row[rows] = np.repeat(side, sizes)
    return np.flatnonzero(side_of_row == 1), np.flatnonzero(side_of_row == 2)


def _cuts(ends: Rows, train_size: int, eval_size: int) -> tuple[int, int]:
    """(groups for training, groups for training and evaluation) of those that end at `ends`.

    Each cut is at the group end nearest to its size. Evaluation starts at the first cut rather than at `train_size`; if
    training is too small, evaluation still ends no earlier than at the sum, so that sizes of all rows use all rows.
    """
    train_groups = min(max(_nearest(ends, train_size), 1), len(ends) - 1)
    evaluation_end = max(int(ends[train_groups - 1]), train_size) + eval_size
    return train_groups, max(_nearest(ends, evaluation_end), train_groups + 1)


def _nearest(ends: Rows, size: int) -> int:
    """The number of groups, perhaps 0, whose total is nearest to `size` rows; the smaller of two equally near."""
    around = int(np.searchsorted(ends, size))
    if around == len(ends):
        return around
    below = int(ends[around - 1]) if around else 0
    return around if size - below <= int(ends[around]) - size else around + 1


def _integer_ids(group_ids: ArrayLike, by_value: bool = False) -> NDArray[np.integer]:
    """Integers[rows] that are equal exactly where the ids are; `by_value` numbers strings in sorted order.

    Raises ValueError for more than one dimension, for missing ids, and unless all are integers or all are strings.
    """
    # object dtype for strings: numpy would pad every string to the longest
    ids = np.asarray(group_ids, dtype=None if hasattr(group_ids, "dtype") else object)
    if ids.ndim != 1:
        raise ValueError(f"group_ids of shape {ids.shape}; needed: one id a row, in one dimension")
    if ids.dtype.kind in "iu":
        return ids
    if ids.dtype.kind == "f":
        missing = np.isnan(ids).sum()
        raise ValueError(
            f"group_ids are {ids.dtype}, {missing} of {len(ids)} NaN; needed: integers or strings"
            "; leave out rows without an id and convert the rest with astype('int64')"
        )
    if ids.dtype.kind != "U" and _kind_of_objects(ids) is int:
        with suppress(OverflowError):  # beyond 64 bits: numbered like strings
            return ids.astype(np.int64)
    return _numbered(ids, by_value)


def _blocks(ids: NDArray) -> Iterator[list]:
    return (ids[start : start + STRING_BLOCK].tolist() for start in range(0, len(ids), STRING_BLOCK))


def _kind_of_objects(ids: NDArray) -> type:
    """`int` or `str`, the type of all ids. Raises ValueError if there is no such type."""
    types = set(map(type, chain.from_iterable(_blocks(ids))))
    for kind in (int, str):
        wanted = (int, np.integer) if kind is int else kind
        if all(issubclass(found, wanted) and found is not bool for found in types):
            return kind
    counts = Counter(map(type, chain.from_iterable(_blocks(ids)))).most_common()
    names = ", ".join(f"{count} of type {found.__name__}" for found, count in counts)
    raise ValueError(
        f"{len(ids)} group_ids: {names}; needed: all integers or all strings"
        "; leave out rows whose id is missing, and convert the rest to one type"
    )


def _numbered(ids: NDArray, by_value: bool) -> NDArray[np.int64]:
    """[rows]: the number of each distinct id, from 0."""
    numbers: defaultdict = defaultdict()
    numbers.default_factory = numbers.__len__  # a new id takes the next number, without Python code per row
    found = np.fromiter(map(numbers.__getitem__, chain.from_iterable(_blocks(ids))), np.int64, len(ids))
    if not by_value:
        return found
    rank = np.empty(len(numbers), dtype=np.int64)
    rank[np.fromiter(map(numbers.__getitem__, sorted(numbers)), np.int64, len(numbers))] = np.arange(len(numbers))
    return rank[found]


def _rows_by_group(ids: NDArray[np.integer], rng: np.random.Generator | None = None) -> tuple[Rows, NDArray]:
    """(row indices sorted by id, their ids). Rows of a group are in their order, or with an `rng` in a random one."""
    if rng is None:
        rows = np.argsort(ids, kind="stable")
    else:
        rows = rng.permutation(len(ids))
        rows = rows[np.argsort(ids[rows], kind="stable")]
    return rows, ids[rows]
