"""Samples of row indices for tables with many rows per user or conversation: limits and splits by group.

Design decisions:
- Functions take ids and return row indices, never rows.
- Rows are grouped by numpy's stable argsort, of shuffled rows where the order within a group is to be random.
- Strings become integers by Arrow's dictionary: numpy's sort of strings takes more time, and pads each to the longest.
"""

from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

Mode = Literal["unchanged", "reverse", "random"]
Rows = NDArray[np.int64]


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

    `group_ids`: [rows], integers or strings, none missing. Of a group with more rows, mode "unchanged" keeps the first
    ones, "reverse" the last ones and "random" a uniformly random subset that depends on the seed and all of
    `group_ids`. Time is that of a sort.
    Raises ValueError for another mode and a negative limit.
    """
    if mode not in get_args(Mode):
        raise ValueError(f"mode={mode!r}; needed: one of {', '.join(get_args(Mode))}")
    if limit < 0:
        raise ValueError(f"limit={limit}; needed: 0 or more rows of every group; 0 keeps nothing")
    ids = _numbers(group_ids)
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

    `group_ids`: [rows], integers or strings, none missing; sizes are in rows. Whole groups are drawn in random order,
    first for training and then for evaluation, so each side has its size to within the rows of the largest group, and
    at least one group. Remaining groups are on neither side; sizes that add up to all rows leave none. The result
    depends on the seed, the sizes and the number of rows of each id, not on the order of the rows. Raises ValueError
    for sizes below 1 or above the number of rows, and a single group.
    """
    ids = _numbers(group_ids)
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


def _numbers(group_ids: ArrayLike) -> NDArray[np.integer]:
    """Integers[rows] that are equal exactly where the ids are, and in their order."""
    ids = np.asarray(group_ids)
    if ids.dtype.kind in "iu":
        return ids
    encoded = pa.array(ids.astype(object), pa.large_string()).dictionary_encode()
    assert not encoded.null_count, "rows without an id are left out before"
    return (pc.rank(encoded.dictionary).to_numpy() - 1)[encoded.indices.to_numpy()]


def _rows_by_group(ids: NDArray[np.integer], rng: np.random.Generator | None = None) -> tuple[Rows, NDArray]:
    """(row indices sorted by id, their ids). Rows of a group are in their order, or with an `rng` in a random one."""
    if rng is None:
        rows = np.argsort(ids, kind="stable")
    else:
        rows = rng.permutation(len(ids))
        rows = rows[np.argsort(ids[rows], kind="stable")]
    return rows, ids[rows]
