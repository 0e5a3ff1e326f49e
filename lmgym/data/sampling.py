"""Which rows to keep of tables where one user or conversation fills many: limits, splits by group, ordered samples.

Design decisions:
- Row indices go in and come out, never rows: what a row is stays the caller's business.
- Rows are grouped by one sort of 64-bit words that hold (group, row): numpy sorts such words in place, with vector
  instructions where there are any, ten times quicker than it argsorts. What does not fit takes two sorts (a radix sort
  whose digits are as wide as the room beside a row number).
- Random order within groups is random bits between group and row; rows that draw the same bits draw again.
- Strings become integers through a dict; a numpy sort of strings would cost more time, and every string the width of
  the longest.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lmgym.data.rows import ordered_sample

__all__ = ["limit_per_group", "ordered_sample", "split_by_group"]

Mode = Literal["unchanged", "reverse", "random"]
Rows = NDArray[np.int64]
Words = NDArray[np.uint64]

STRING_BLOCK = 65_536  # array entries held as Python objects at once


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
    # a row has `limit` rows of its group before (after) it just where the row that far off is of the group
    other = groups[limit:] != groups[:-limit]
    del groups  # 8 bytes a row
    keep = np.ones(len(rows), dtype=bool)
    keep[slice(None, -limit) if mode == "reverse" else slice(limit, None)] = other
    kept = rows[keep].astype(np.int64)
    kept.sort()
    return kept


def split_by_group(group_ids: ArrayLike, train_size: int, eval_size: int, seed: int = 0) -> tuple[Rows, Rows]:
    """Indices of training and of evaluation rows, each increasing, without a group on both sides.

    `group_ids`: [rows], integers or strings; sizes are in rows. Whole groups are drawn in random order, first for
    training and then for evaluation, so a side has its size to within the rows of the largest group, and at least one
    group. What is left over is on neither side; sizes that add up to all rows leave nothing over.
    Which groups are drawn depends on the seed, the sizes and how many rows each id has, not on the order of the rows.
    Raises ValueError for sizes below 1 or above the rows there are, a single group, and ids that `limit_per_group`
    refuses.
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
    """How many groups of those that end at `ends` are for training, and how many for training and evaluation.

    Each cut is at the end nearest to where it belongs. Evaluation starts at the first cut rather than at `train_size`;
    where training fell short it still ends no earlier than at the sum, which all rows must reach.
    """
    train_groups = min(max(_nearest(ends, train_size), 1), len(ends) - 1)
    evaluation_end = max(int(ends[train_groups - 1]), train_size) + eval_size
    return train_groups, max(_nearest(ends, evaluation_end), train_groups + 1)


def _nearest(ends: Rows, size: int) -> int:
    """How many groups have together nearest to `size` rows, 0 included; the fewer of two that are as near."""
    around = int(np.searchsorted(ends, size))
    if around == len(ends):
        return around
    below = int(ends[around - 1]) if around else 0
    return around if size - below <= int(ends[around]) - size else around + 1


def _integer_ids(group_ids: ArrayLike, by_value: bool = False) -> NDArray[np.integer]:
    """Integers[rows] that are equal where the ids are; `by_value` numbers strings in their order, not as they appear.

    Raises ValueError for more than one dimension, for missing ids and where they are not all integers or all strings.
    """
    # a list of strings stays one of pointers: numpy would give every string the width of the longest
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
    """`int` or `str`, whichever all ids are; raises ValueError otherwise."""
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
    """Numbers[rows] of the distinct ids, from 0."""
    numbers: defaultdict = defaultdict()
    numbers.default_factory = numbers.__len__  # a new id takes the next number, without a line of Python a row
    found = np.fromiter(map(numbers.__getitem__, chain.from_iterable(_blocks(ids))), np.int64, len(ids))
    if not by_value:
        return found
    rank = np.empty(len(numbers), dtype=np.int64)
    rank[np.fromiter(map(numbers.__getitem__, sorted(numbers)), np.int64, len(numbers))] = np.arange(len(numbers))
    return rank[found]


def _rows_by_group(ids: NDArray[np.integer], rng: np.random.Generator | None = None) -> tuple[NDArray, Words]:
    """Row indices sorted by id, and a number[rows] that tells their groups apart and never falls.

    Rows of a group come in their order, or in a random one where there is an `rng`.
    """
    lowest, highest = int(ids.min()), int(ids.max())
    # modulo 2^64, so that negative ids come out right; no name here, which would hold 8 bytes a row until the end
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
    """From 0, one more wherever a value differs from the one before it."""
    numbers = np.zeros(len(values), dtype=np.uint64)
    np.cumsum(values[1:] != values[:-1], dtype=np.uint64, out=numbers[1:])
    return numbers


def _sorted_digits(words: Words, width: int, rng: np.random.Generator | None) -> tuple[NDArray, Words]:
    """`_sorted_words` where a word and a row number fit into 64 bits."""
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
    """Puts those `rows` in a random order, in place, whose `words` are equal: they were sorted by row."""
    equal = words[1:] == words[:-1]
    tied = np.zeros(len(words), dtype=bool)
    tied[1:] |= equal
    tied[:-1] |= equal
    places = np.flatnonzero(tied)
    if len(places):
        order, _ = _rows_by_group(_run_numbers(words[places]), rng)
        rows[places] = rows[places[order]]
