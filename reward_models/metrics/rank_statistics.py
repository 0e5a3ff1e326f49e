"""Rank statistics over all rows and within groups, without a Python loop over either.

Design decisions:
- Rows of one group and one value form a block: ties are counted block by block, so that AUC and ranks are exact.
- Values come as dense ranks: integers compare and subtract exactly where floats may overflow.
- An undefined figure is NaN here; callers replace it by a reason.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class TieBlocks(NamedTuple):
    """Blocks of rows that share group and value, sorted by group, then value."""

    of_row: Ints  # [rows]
    group: Ints  # [blocks]
    first: Ints  # [blocks], the first block of the same group
    sizes: Ints  # [blocks], in rows


def finite_column(name: str, values: ArrayLike) -> Floats:
    """Values as float64. Raises ValueError for those that are not finite: NaN has no rank."""
    column = np.asarray(values, dtype=np.float64)
    bad = np.flatnonzero(~np.isfinite(column))
    if len(bad):
        raise ValueError(
            f"{name} holds {len(bad)} non-finite of {column.size} values, the first {column.flat[bad[0]]} at index "
            f"{bad[0]}; needed: finite values; look for a missing value, a diverged loss or a score computed in fp16"
        )
    return column


def group_codes(name: str, ids: ArrayLike) -> Ints:
    """Codes[rows] from 0 of integer or string ids[rows]. Raises ValueError for null ids, which are not one group."""
    column = np.asarray(ids)
    if column.dtype.kind in "iu":
        return np.unique(column, return_inverse=True)[1].astype(np.int64)
    # hashed: sorting a million strings takes seconds, and fixed-width ones the memory of the longest
    values = column.tolist()
    codes = {value: code for code, value in enumerate(dict.fromkeys(values))}
    nulls = [value is None or value != value for value in codes]
    found = np.fromiter(map(codes.__getitem__, values), np.int64, len(values))
    if any(nulls):
        bad = np.flatnonzero(np.asarray(nulls)[found])
        raise ValueError(
            f"{name} holds {len(bad)} null of {len(values)} ids, the first at index {bad[0]}; needed: integers or "
            "strings; drop those rows or give each an id of its own"
        )
    return found


def dense_ranks(values: Floats) -> Ints:
    """Places from 0 among the distinct values: equal where the values are, in their order."""
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def tie_blocks(places: Ints, groups: Ints) -> TieBlocks:
    """Blocks of equal places (dense ranks[rows]) within groups (codes[rows])."""
    width = places.max() + 1
    keys, of_row, sizes = np.unique(groups * width + places, return_inverse=True, return_counts=True)
    group = keys // width
    return TieBlocks(of_row, group, np.searchsorted(group, group), sizes)


def block_ranks(blocks: TieBlocks) -> Floats:
    """Ranks[rows] from 1 within each group, lowest first, ties at the mean of theirs."""
    return (_before(blocks, blocks.sizes) + (blocks.sizes + 1) / 2)[blocks.of_row]


def group_ranks(values: Floats, groups: Ints) -> Floats:
    """Ranks[rows] from 1 of values[rows] within each group, lowest first, ties at the mean of theirs."""
    return block_ranks(tie_blocks(dense_ranks(values), groups))


def average_ranks(values: Floats) -> Floats:
    """Ranks from 1 over all values, lowest first, ties at the mean of theirs."""
    return group_ranks(values, np.zeros(len(values), dtype=np.int64))


def pearson(a: Floats, b: Floats) -> float:
    """Correlation of two columns that both vary; callers exclude constant ones."""
    a, b = a - a.mean(), b - b.mean()
    return float((a / np.linalg.norm(a)) @ (b / np.linalg.norm(b)))


def spearman(a: Floats, b: Floats) -> float:
    """Correlation of average ranks (Spearman 1904), ties included; both columns vary."""
    return pearson(average_ranks(a), average_ranks(b))


def ordered_pairs(blocks: TieBlocks, positive: NDArray[np.bool_], negative: NDArray[np.bool_]) -> tuple[Floats, Ints]:
    """(number of rightly ordered (positive, negative) pairs, number of pairs) inside each group: [groups] each.

    positive, negative: [rows], a row may be neither. A pair is right if the positive row has the higher value, a tie
    is half right: their ratio is the AUC (Mann and Whitney 1947).
    """
    up, down = (_counts(blocks.of_row[rows], len(blocks.sizes)) for rows in (positive, negative))
    groups = blocks.group[-1] + 1
    twice_right = np.bincount(blocks.group, up * (2 * _before(blocks, down) + down), groups)
    # sums of integers below 2^53: exact in float64
    totals = np.bincount(blocks.group, up, groups) * np.bincount(blocks.group, down, groups)
    return twice_right / 2, totals.astype(np.int64)


def group_spearman(a: Floats, b: Floats, groups: Ints) -> Floats:
    """Spearman's correlation[groups] of a[rows] and b[rows] within each group; NaN where either is all tied."""
    middle = (np.bincount(groups) + 1) / 2
    x, y = (group_ranks(values, groups) - middle[groups] for values in (a, b))
    cross, xx, yy = (np.bincount(groups, product) for product in (x * y, x * x, y * y))
    return _ratio(cross, xx * yy)


def group_kendall(a: Floats, b: Floats, groups: Ints) -> Floats:
    """Kendall's tau-b[groups] (1945) of a[rows] and b[rows] within each group; NaN where either is all tied.

    Works through pairs of rows by their distance in the sorted order: one step for each distance up to the largest
    group, over the pairs that exist.
    """
    order = np.argsort(groups, kind="stable")
    sizes = np.bincount(groups)
    x, y, group = dense_ranks(a)[order], dense_ranks(b)[order], groups[order]
    after = (np.cumsum(sizes) - 1)[group] - np.arange(len(group))  # rows of the group that follow
    agreement, untied_x, untied_y = np.zeros((3, len(sizes)))
    first = np.arange(len(group))
    for distance in range(1, sizes.max()):
        first = first[after[first] >= distance]
        dx, dy = (np.sign(v[first + distance] - v[first]) for v in (x, y))
        agreement += np.bincount(group[first], dx * dy, len(sizes))
        untied_x += np.bincount(group[first], dx != 0, len(sizes))
        untied_y += np.bincount(group[first], dy != 0, len(sizes))
    return _ratio(agreement, untied_x * untied_y)


def _counts(places: Ints, size: int) -> Ints:
    return np.bincount(places, minlength=size).astype(np.int64)


def _before(blocks: TieBlocks, amounts: Ints) -> Ints:
    """The sum of amounts[blocks] over the lower blocks of the same group."""
    running = np.cumsum(amounts) - amounts
    return running - running[blocks.first]


def _ratio(numerators: NDArray, squared_denominators: NDArray) -> Floats:
    defined = squared_denominators > 0
    ratios = np.full(len(numerators), np.nan)
    ratios[defined] = numerators[defined] / np.sqrt(squared_denominators[defined])
    return ratios
