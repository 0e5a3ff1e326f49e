"""The rows of each optimizer step, cut into micro-batches.

Design decisions:
- The rows of an update are a random sample of constant size. Only its micro-batches are formed by length, so sorting
  does not bias the gradient.
- Every rank computes the same plan from (seed, epoch) and takes its own part; the loader is not given to accelerate,
  which would shard or duplicate it again.
- Randomness in preparing a micro-batch depends only on its place (seed, epoch, number, rank).
- Each rank has the same number of micro-batches in every update. When rows run out, a micro-batch holds one filler: a
  row that runs through the model, so that collectives match, and has no weight in the loss.
- By tokens, an update has as few micro-batches as hold its rows. Trainer and DeepSpeed count a fixed number, that of
  one row each: updates begin with as many empty ones as are not needed, and nothing runs for them.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import DataLoader, Dataset, Sampler

from lmgym.config import largest_divisor
from lmgym.distributed.random_state import seeded
from lmgym.errors import InputError


class Slot(NamedTuple):
    """A row of a micro-batch."""

    row: int
    counts: bool
    """False for a filler"""
    place: tuple[int, ...] = ()
    """(epoch, number, rank) of the micro-batch"""


class MicroBatches(Dataset):
    """Micro-batches by their slots: `collate` gets a list of (row, counts)."""

    def __init__(self, rows: Sequence, collate: Callable[[list[tuple[Any, bool]]], Any], seed: int = 0) -> None:
        self.rows, self.collate, self.seed = rows, collate, seed

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, slot: Slot) -> Any:
        return self.__getitems__([slot])

    def __getitems__(self, slots: Sequence[Slot]) -> Any:
        """A whole micro-batch, as the loader requests it; of no slots an empty one."""
        if not slots:
            return {}
        with seeded(self.seed, *slots[0].place):
            return self.collate([(self.rows[slot.row], slot.counts) for slot in slots])


def accumulation_steps(global_batch: int, micro_batch: int, ranks: int) -> int:
    """Micro-batches per rank and update. Raises InputError if the batch does not divide evenly."""
    if min(global_batch, micro_batch) < 1:
        raise InputError(f"found global_batch={global_batch} and micro_batch={micro_batch}; both need at least 1")
    together = micro_batch * ranks
    if global_batch % together:
        below = global_batch // together * together
        fix = f"--global_batch {below} or {below + together}" if below else f"--global_batch {together}"
        if global_batch % ranks == 0:
            each = global_batch // ranks
            fix = f"--micro_batch {largest_divisor(each, micro_batch)}, which leaves an update as it is, or {fix}"
        raise InputError(
            f"global_batch={global_batch} is not divisible by micro_batch={micro_batch} times {ranks} rank(s); "
            f"use {fix}"
        )
    return global_batch // together


class UpdateSampler(Sampler):
    """Micro-batches of slots for one rank, update after update of an epoch.

    `lengths` is the cost of each row (tokens); `accumulation` the number of micro-batches per rank and update. Rows are
    shuffled, or with `in_order` taken as they come. With `tokens` a micro-batch holds at most so many, or one row, and
    the first ones of an update may be empty.
    """

    def __init__(
        self,
        lengths: Sequence[int] | np.ndarray,
        global_batch: int,
        accumulation: int,
        ranks: int = 1,
        rank: int = 0,
        seed: int = 0,
        in_order: bool = False,
        tokens: int | None = None,
    ) -> None:
        self.in_order, self.tokens = in_order, tokens
        self.lengths = np.asarray(lengths)
        self.global_batch, self.accumulation = global_batch, accumulation
        self.ranks, self.rank, self.seed, self.epoch = ranks, rank, seed, 0
        self.micro_batch = global_batch // (accumulation * ranks)
        assert tokens is None or self.micro_batch == 1, "an update may need a micro-batch for each row"

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which determines the order of the rows."""
        self.epoch = epoch

    def __len__(self) -> int:
        whole, rest = divmod(len(self.lengths), self.global_batch)
        return whole * self.accumulation + self._micro_batches(rest)

    def _micro_batches(self, rows: int) -> int:
        return -(-rows // (self.micro_batch * self.ranks))

    def updates(self) -> list[np.ndarray]:
        """Rows of each update of this epoch, for all ranks together.

        The first update of the first epoch holds the longest row, so that a lack of memory shows at once.
        """
        order = np.random.default_rng([self.seed, self.epoch]).permutation(len(self.lengths))
        if self.in_order:
            order.sort()
        if not len(order):
            return []
        updates = np.split(order, range(self.global_batch, len(order), self.global_batch))
        longest = int(np.argmax(self.lengths[order])) // self.global_batch
        if self.epoch == 0 and len(updates[longest]) == self.global_batch:  # a short one stays the last
            updates[0], updates[longest] = updates[longest], updates[0]
        return updates

    def __iter__(self) -> Iterator[list[Slot]]:
        number = 0
        for rows in self.updates():
            # longest first: a lack of memory shows at once, and buffers never have to grow
            rows = rows[np.argsort(-self.lengths[rows], kind="stable")]
            for of_ranks in self._cut(rows):
                place = (self.epoch, number, self.rank)
                number += 1
                own = [Slot(int(row), True, place) for row in of_ranks[self.rank]] if of_ranks else []
                yield own or [Slot(int(rows[-1]), False, place)] * bool(of_ranks)

    def _cut(self, rows: np.ndarray) -> list[list[np.ndarray]]:
        """The rows of each rank by micro-batch, of rows from the longest to the shortest; [] for one without rows."""
        count = self._micro_batches(len(rows))
        if self.tokens is None:
            return [[part[rank :: self.ranks] for rank in range(self.ranks)] for part in np.array_split(rows, count)]
        lengths = self.lengths[rows].tolist()
        fewest = -(-len(length_batches(lengths, self.tokens)) // self.ranks)
        parts = [rows[part] for part in even_batches(lengths, self.tokens, fewest * self.ranks)]
        parts += [rows[:0]] * (fewest * self.ranks - len(parts))
        return [[]] * (count - fewest) + [parts[n * self.ranks : (n + 1) * self.ranks] for n in range(fewest)]


def batches_of_rank(batches: Sequence[list[int]], ranks: int, rank: int) -> Iterator[tuple[list[int], bool]]:
    """(batch, counts) for this rank, equally many on all ranks, since a forward under ZeRO-3 is collective.

    A rank without a batch of its own repeats the last batch, which does not count.
    """
    for first in range(0, len(batches), ranks):
        index = first + rank
        yield batches[min(index, len(batches) - 1)], index < len(batches)


class UpdateLoader(DataLoader):
    """Batches of an UpdateSampler. Trainer passes the epoch to a loader only, and only if it has `set_epoch`."""

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch on to the sampler."""
        self.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]


def length_batches(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Rows sorted by length, longest first, in batches of at most `tokens` tokens; a longer row is a batch alone."""
    batches: list[list[int]] = []
    filled = 0
    for row in np.argsort(-np.asarray(lengths), kind="stable").tolist():
        if not batches or filled + lengths[row] > tokens:
            batches.append([])
            filled = 0
        batches[-1].append(row)
        filled += int(lengths[row])
    return batches


def even_batches(lengths: Sequence[int], tokens: int, count: int) -> list[list[int]]:
    """`length_batches` of as equal numbers of tokens as `count` batches allow, which must be enough for `tokens`."""
    return length_batches(
        lengths, bisect_left(range(tokens), True, key=lambda most: len(length_batches(lengths, most)) <= count)
    )
