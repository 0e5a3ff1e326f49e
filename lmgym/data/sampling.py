"""Samples of row indices for tables with many rows per user or conversation: limits and splits by group.

Design decisions:
- Functions take ids and return row indices, never rows.
- Rows are grouped by one sort of 64-bit words that hold (group, row): numpy sorts words in place, vectorised, ten times
  faster than argsort. Ids that do not fit take two sorts (a radix sort with digits as wide as a row number leaves).
- Random order within groups is random bits between group and row; rows with equal bits get new ones.
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
Words = NDArray[np.uint64]

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
    Time is that of a sort; memory at most 4 words of 8 bytes a row above integer ids (benchmarks/data_prep.py).
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
    del groups  # 8 bytes a row
    keep = np.ones(len(rows), dtype=bool)
    keep[slice(None, -limit) if mode == "reverse" else slice(limit, None)] = other
    kept = rows[keep].astype(np.int64)
    kept.sort()
    return kept


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


def _rows_by_group(ids: NDArray[np.integer], rng: np.random.Generator | None = None) -> tuple[NDArray, Words]:
    """(row indices sorted by id, non-decreasing numbers [rows] that are equal exactly within groups).

    Rows of a group are in their order, or with an `rng` in a random one.
    """
    lowest, highest = int(ids.min()), int(ids.max())
    # modulo 2^64, so that negative ids are right; not named, as a name would hold 8 bytes a row until the end
    return _sorted_words(ids.astype(np.uint64) - np.uint64(lowest % 2**64), (highest - lowest).bit_length(), rng)


def _sorted_words(words: Words, width: int, rng: np.random.Generator | None) -> tuple[NDArray, Words]:
    """`_rows_by_group` of `words` below 2^width, which are overwritten."""
    digit = 64 - len(words).bit_length()
    if width <= digit:
        return _sorted_digits(words, width, rng)
    rows = _sorted_digits(words & np.uint64(2**digit - 1), digit, None)[0]
    high = words[rows]
    high >>= np.uint64(digit)
    rows = rows[_sorted_words(high, width - digit, None)[0]]
    del high  # 8 bytes a row
    words = words[rows]
    if rng is None:
        return rows, words
    words = _run_numbers(words)
    shuffled, words = _sorted_words(words, int(words[-1]).bit_length(), rng)
    return rows[shuffled], words


def _run_numbers(values: Words) -> Words:
    """Numbers of runs of equal values, from 0."""
    numbers = np.zeros(len(values), dtype=np.uint64)
    np.cumsum(values[1:] != values[:-1], dtype=np.uint64, out=numbers[1:])
    return numbers


def _sorted_digits(words: Words, width: int, rng: np.random.Generator | None) -> tuple[NDArray, Words]:
    """`_sorted_words` for words that fit into 64 bits together with a row number."""
    row_bits = len(words).bit_length()
    spare = 64 - row_bits - width if rng else 0
    if rng:
        words <<= np.uint64(spare)
        words |= rng.integers(2**spare, size=len(words), dtype=np.uint64)
    rows = np.arange(len(words), dtype=np.min_scalar_type(len(words)))
    words <<= np.uint64(row_bits)
    words |= rows
    words.sort()
    np.bitwise_and(words, np.uint64(2**row_bits - 1), out=rows, casting="unsafe")  # casts block by block
    words >>= np.uint64(row_bits)
    if rng:
        _draw_again(words, rows, rng)
    words >>= np.uint64(spare)
    return rows, words


def _draw_again(words: Words, rows: NDArray, rng: np.random.Generator) -> None:
    """Shuffles, in place, `rows` whose `words` are equal, which were sorted by row."""
    equal = words[1:] == words[:-1]
    tied = np.zeros(len(words), dtype=bool)
    tied[1:] |= equal
    tied[:-1] |= equal
    places = np.flatnonzero(tied)
    if len(places):
        order, _ = _rows_by_group(_run_numbers(words[places]), rng)
        rows[places] = rows[places[order]]
