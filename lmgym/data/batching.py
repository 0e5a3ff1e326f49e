"""Which rows an optimizer step sees, and how they are cut into micro-batches.

Design decisions:
- The rows of an update are a random draw and their number is constant: lengths shape only the micro-batches within
  it, so sorting biases no gradient.
- Every rank computes the same plan from (seed, epoch) and takes its own part; the loader is not handed to
  accelerate, which would shard or duplicate it again.
- What is random in preparing a micro-batch is a function of its place alone (seed, epoch, number, rank).
- Each rank has the same number of micro-batches in every update. Where rows run out, a micro-batch holds one filler:
  a row that runs through the model, so that collectives meet, and counts for nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import Dataset, Sampler

from lmgym.errors import InputError
from lmgym.random_state import seeded


class Slot(NamedTuple):
    """A place in a micro-batch: a row, whether it counts, and of which micro-batch (epoch, number, rank)."""

    row: int
    counts: bool
    place: tuple[int, ...] = ()


class Slots(Dataset):
    """Micro-batches addressed by their slots: `collate` of `(row, counts)` items."""

    def __init__(self, rows: Sequence, collate: Callable[[list[tuple[Any, bool]]], Any], seed: int = 0) -> None:
        self.rows, self.collate, self.seed = rows, collate, seed

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, slot: Slot) -> Any:
        return self.__getitems__([slot])

    def __getitems__(self, slots: Sequence[Slot]) -> Any:
        """What a loader asks for: a whole micro-batch at once."""
        with seeded(self.seed, *slots[0].place):
            return self.collate([(self.rows[slot.row], slot.counts) for slot in slots])


def accumulation_steps(global_batch: int, micro_batch: int, ranks: int) -> int:
    """Micro-batches a rank and update. Raises InputError where they do not divide."""
    if min(global_batch, micro_batch) < 1:
        raise InputError(f"found global_batch={global_batch} and micro_batch={micro_batch}; both need at least 1")
    together = micro_batch * ranks
    if global_batch % together:
        below = global_batch // together * together
        fix = f"{below} or {below + together}" if below else str(together)
        raise InputError(
            f"global_batch={global_batch} is not divisible by micro_batch={micro_batch} times {ranks} rank(s); "
            f"use --global_batch {fix}"
        )
    return global_batch // together


class UpdateSampler(Sampler):
    """Micro-batches of slots for one rank, update after update of an epoch.

    `lengths` is the cost of each row (tokens); `accumulation` the micro-batches a rank and update.
    """

    def __init__(
        self,
        lengths: Sequence[int] | np.ndarray,
        global_batch: int,
        accumulation: int,
        ranks: int = 1,
        rank: int = 0,
        seed: int = 0,
    ) -> None:
        self.lengths = np.asarray(lengths)
        self.global_batch, self.accumulation = global_batch, accumulation
        self.ranks, self.rank, self.seed, self.epoch = ranks, rank, seed, 0
        self.micro_batch = global_batch // (accumulation * ranks)

    def set_epoch(self, epoch: int) -> None:
        """Another epoch, another order."""
        self.epoch = epoch

    def __len__(self) -> int:
        whole, rest = divmod(len(self.lengths), self.global_batch)
        return whole * self.accumulation + self._micro_batches(rest)

    def _micro_batches(self, rows: int) -> int:
        return -(-rows // (self.micro_batch * self.ranks))

    def updates(self) -> list[np.ndarray]:
        """The rows of each update of this epoch, all ranks together.

        The first update of the first epoch holds the longest row: what does not fit in memory fails at once.
        """
        order = np.random.default_rng([self.seed, self.epoch]).permutation(len(self.lengths))
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
            # longest first: what does not fit in memory fails at once, and buffers are never outgrown
            rows = rows[np.argsort(-self.lengths[rows], kind="stable")]
            for chunk in np.array_split(rows, self._micro_batches(len(rows))):
                mine = chunk[self.rank :: self.ranks]
                place = (self.epoch, number, self.rank)
                number += 1
                yield [Slot(int(row), True, place) for row in mine] or [Slot(int(chunk[-1]), False, place)]


def shared_out(batches: Sequence[list[int]], ranks: int, rank: int) -> Iterator[tuple[list[int], bool]]:
    """This rank's batches, as many as every other's: under ZeRO-3 a forward is collective.

    Of each, whether it counts: a rank whose turn is empty runs along on another's.
    """
    for turn in range(-(-len(batches) // ranks)):
        mine = turn * ranks + rank
        yield batches[min(mine, len(batches) - 1)], mine < len(batches)


def length_batches(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Rows sorted by length and cut into batches of at most `tokens` tokens (a longer row stands alone)."""
    order = np.argsort(-np.asarray(lengths), kind="stable")
    batches: list[list[int]] = []
    filled = 0
    for row in order:
        if not batches or filled + lengths[row] > tokens:
            batches.append([])
            filled = 0
        batches[-1].append(int(row))
        filled += int(lengths[row])
    return batches
