"""Micro-batches of the rows of rollouts. What rows have in common runs once: the prompt of a group's replies, and the
turns of an episode that a later turn goes on from.

Design decisions:
- Rows are paths in a tree of segments. A prompt, but for its last token, is a segment; so is what a reply adds to it,
  or a later turn to the turn before, if its prompt begins with the very ids of that turn. A forward computes each
  segment of a micro-batch once, and reads each row's sampled tokens in its own segment.
- Rows that share segments stand together, so that a micro-batch has most of them; it is as large as what is computed.
- Rows whose decoder is padded share nothing. Of a policy over actions a segment is a prompt with all candidates, and
  rows that choose among the same ones after the same prompt share it (`pack_choices`).
"""

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch

from lmgym.distributed.ranks import max_over_ranks
from lmgym.models.forward.packed_rows import PackedRows, pack_segments


@dataclass(frozen=True)
class RowTree:
    """S segments of R rows; the own segment of row r has number r."""

    parents: np.ndarray
    """[S] int64: the segment that each one continues, -1: none"""
    tokens: np.ndarray
    """[S] int64: tokens of each in a forward"""
    ids: Sequence[Sequence[int]] = field(repr=False)
    """[S]; empty where rows are packed otherwise"""
    episode_of_row: np.ndarray = field(repr=False)

    @classmethod
    def of(
        cls, rows: Sequence[Sequence[int]], reply_lengths: Sequence[int], episode_of_row: np.ndarray, shared: bool
    ) -> "RowTree":
        """The tree of rows, prompts with their replies [R]; if not `shared`, each row is one segment."""
        if not shared:
            own = [row[:-1] for row in rows]
            return cls.unshared([len(ids) for ids in own], episode_of_row, own)
        parents, ids = [-1] * len(rows), [row[:-1] for row in rows]
        prompts: dict[tuple[int, ...], int] = {}
        for number, (row, length) in enumerate(zip(rows, reply_lengths, strict=True)):
            before = rows[number - 1] if number and episode_of_row[number - 1] == episode_of_row[number] else []
            begin = len(row) - length - 1  # of the prompt's last token
            if before and len(before) <= begin + 1 and list(row[: len(before)]) == list(before):
                parents[number], begin = number - 1, len(before) - 1
            elif begin > 0:
                parents[number] = prompts.setdefault(tuple(row[:begin]), len(rows) + len(prompts))
            else:
                begin = 0
            ids[number] = row[begin:-1]
        ids += [list(prompt) for prompt in prompts]
        parents += [-1] * len(prompts)
        return cls(np.array(parents, np.int64), np.array([len(own) for own in ids], np.int64), ids, episode_of_row)

    @classmethod
    def of_choices(cls, asked: Sequence[tuple[Hashable, int]], episode_of_row: np.ndarray) -> "RowTree":
        """The tree of choices [R], by what each is asked, a prompt with its candidates, and the tokens of that."""
        segment_of = {one: len(asked) + place for place, one in enumerate(dict.fromkeys(asked))}
        tokens = [0] * len(asked) + [tokens for _, tokens in segment_of]
        parents = [segment_of[one] for one in asked] + [-1] * len(segment_of)
        return cls(np.array(parents, np.int64), np.array(tokens, np.int64), (), episode_of_row)

    @classmethod
    def unshared(
        cls, tokens: Sequence[int], episode_of_row: np.ndarray, ids: Sequence[Sequence[int]] = ()
    ) -> "RowTree":
        """Rows that share nothing, by their tokens in a forward; without `ids` they are not for `pack`."""
        return cls(np.full(len(tokens), -1), np.array(tokens, np.int64), ids, episode_of_row)

    @cached_property
    def paths(self) -> list[list[int]]:
        """[R]: each row's segments, the first one first."""
        found: list[list[int]] = []
        parents = self.parents.tolist()
        for row in range(len(self.episode_of_row)):  # a turn stands behind the one that it goes on from
            parent = parents[row]
            above = [] if parent < 0 else found[parent] if parent < row else [parent]
            found.append([*above, row])
        return found

    def batches(self, rows: np.ndarray, size: int, tokens: int | None = None, times: int = 1) -> list[np.ndarray]:
        """The rows in micro-batches of at most `times` as many rows, or tokens if they are given, the longest first.

        Collective: every rank gets as many as the rank that needs most, because forwards may be collective; the
        additional ones are empty.
        """
        order = self._together(rows)
        size, tokens = times * size, times * (tokens or 0)
        needed = len(self._cut(order, tokens)) if tokens else -(-len(order) // size)
        count = int(max_over_ranks(torch.tensor(needed)))
        if not tokens:
            return [order[first : first + size] for first in range(0, count * size, size)]
        even = bisect_left(range(tokens), True, key=lambda most: len(self._cut(order, most)) <= count)
        found = self._cut(order, even)
        return found + [order[:0]] * (count - len(found))

    def _together(self, rows: np.ndarray) -> np.ndarray:
        """The rows by family, that of the longest row first; within it by episode, the longest first, turn by turn."""
        if not len(rows):
            return rows
        paths = [self.paths[row] for row in rows]
        lengths = np.array([self.tokens[path].sum() for path in paths])
        _, family = np.unique([path[0] for path in paths], return_inverse=True)
        _, episode = np.unique(self.episode_of_row[rows], return_inverse=True)
        longest = [np.zeros(of.max() + 1, np.int64) for of in (family, episode)]
        for of, most in zip((family, episode), longest, strict=True):
            np.maximum.at(most, of, lengths)
        return rows[np.lexsort((rows, episode, -longest[1][episode], family, -longest[0][family]))]

    def _cut(self, order: np.ndarray, tokens: int) -> list[np.ndarray]:
        """The rows in this order in batches that compute at most so many tokens, or have one row."""
        starts, filled, seen = [0], 0, set[int]()
        for place, row in enumerate(order.tolist()):
            path = self.paths[row]
            added = sum(int(self.tokens[segment]) for segment in path if segment not in seen)
            if place and filled + added > tokens:
                starts.append(place)
                added, filled, seen = int(self.tokens[path].sum()), 0, set()
            filled += added
            seen.update(path)
        return np.split(order, starts[1:]) if len(order) else []

    def pack(self, rows: Iterable[int], reply_lengths: np.ndarray) -> tuple[PackedRows, np.ndarray, list[int]]:
        """(the packed rows, read at each row's sampled tokens; the rows in the order in which they are read; the
        segments in the order in which they are computed).
        """
        paths = [self.paths[row] for row in rows]
        ends = {path[-1] for path in paths}
        children = {(above, below) for path in paths for above, below in pairwise(path)}
        branches = np.bincount([above for above, _ in children], minlength=len(self.parents)) > 1
        pieces: list[list[int]] = []
        prefixes, reads, order, computed = [], [], [], []
        piece_of: dict[int, int] = {}
        for path in paths:
            begin = max((place + 1 for place, segment in enumerate(path) if segment in piece_of), default=0)
            piece: list[int] = []
            prefix = piece_of[path[begin - 1]] if begin else -1
            for segment in path[begin:]:
                piece += self.ids[segment]
                computed.append(segment)
                if segment in ends or branches[segment]:
                    piece_of[segment] = len(pieces)
                    pieces.append(piece)
                    prefixes.append(prefix)
                    reads.append(int(reply_lengths[segment]) if segment in ends else 0)
                    order += [segment] * (segment in ends)
                    piece, prefix = [], piece_of[segment]
        return pack_segments(pieces, prefixes, reads), np.array(order, np.int64), computed
