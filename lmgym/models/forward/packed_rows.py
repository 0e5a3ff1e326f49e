"""Rows of tokens laid end to end, without padding: what one packed forward of a decoder reads.

Design decisions:
- Rows are cut into segments. A segment sees itself, causally, and may continue another one, which it sees whole: so a
  row is `prefix + suffix 1 + suffix 2 + ...`, the prefix runs once, and each suffix's score is that of the row alone.
- Lengths are plain integers: nothing asks the device for them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import torch

from lmgym.text import Replies


@dataclass(frozen=True)
class Varlen:
    """The segments as a flash attention kernel takes them: S segments, K keys (a prefix once for each that uses it)."""

    query_starts: torch.Tensor
    """[S + 1] int32"""
    key_starts: torch.Tensor
    """[S + 1] int32"""
    keys: torch.Tensor | None
    """[K] int64: which of the N tokens; None where no segment continues another: all of them, in order"""
    longest_query: int
    longest_key: int


@dataclass(frozen=True)
class PackedRows:
    """N tokens in S segments, of which M are read. It passes whole through keyword arguments of a model."""

    ids: torch.Tensor
    """[N] int64"""
    positions: torch.Tensor
    """[N] int64; a segment goes on from the one that it continues"""
    places: torch.Tensor
    """[M] int64: which of the N are read, in the order that outputs have"""
    lengths: tuple[int, ...]
    """[S]: tokens of each segment; they add up to N"""
    prefixes: tuple[int, ...]
    """[S]: the segment that each one continues, an earlier one; -1: none"""
    reads: tuple[int, ...] | None = None
    """[S]: the last so many of a segment's tokens are read, in order; None: `places` are anywhere"""
    varlen: Varlen | None = None
    """on a GPU alone"""

    def to(self, device) -> "PackedRows":
        """The same on another device."""
        moved = self._map(lambda tensor: tensor.to(device, non_blocking=True))
        if torch.device(device).type == "cuda" and moved.varlen is None:
            return replace(moved, varlen=_varlen(self, device))
        return moved

    def pin_memory(self) -> "PackedRows":
        """The same in pinned memory; the loader asks for it."""
        return self._map(torch.Tensor.pin_memory)

    def _map(self, function) -> "PackedRows":
        return replace(self, ids=function(self.ids), positions=function(self.positions), places=function(self.places))

    def spans(self) -> list[np.ndarray]:
        """Which of the N tokens make up each segment and, before it, those that it continues."""
        found: list[np.ndarray] = []
        for end, length, prefix in zip(accumulate(self.lengths), self.lengths, self.prefixes, strict=True):
            own = np.arange(end - length, end)
            found.append(own if prefix < 0 else np.concatenate([found[prefix], own]))
        return found


def pack_rows(rows: Sequence[Sequence[int]], reads: Sequence[int], skip: int = 1) -> PackedRows:
    """Rows of ids, read at the `reads[i]` places of row i before its last `skip` tokens.

    With skip 1 these are the places whose next tokens are the row's last `reads[i]`; with 0 the last places themselves.
    The skipped tokens are left out: no place that is read sees them.
    """
    kept = [row[: len(row) - skip] for row in rows]
    lengths, counts = np.array([len(row) for row in kept]), np.asarray(reads)
    firsts = np.cumsum(lengths) - counts
    places = np.arange(counts.sum()) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)
    return _packed(kept, [-1] * len(kept), places, tuple(counts.tolist()))


def pack_places(rows: Sequence[Sequence[int]], places: Sequence[Sequence[int]]) -> PackedRows:
    """Rows of ids, each read at places of its own, row after row."""
    starts = np.cumsum([0, *(len(row) for row in rows)])
    of_row = [np.asarray(own, dtype=np.int64) + start for own, start in zip(places, starts, strict=False)]
    return _packed(rows, [-1] * len(rows), np.concatenate(of_row), None)


def pack_replies(rows: Sequence[Replies]) -> PackedRows:
    """Rows of replies, each read at its last token, row after row; a shared prefix runs once."""
    pieces: list[Sequence[int]] = []
    prefixes: list[int] = []
    reads: list[int] = []
    for row in rows:
        shared = len(row.suffixes) > 1 and bool(row.prefix)  # a prefix of one reply is nobody else's
        first = len(pieces)
        pieces += [row.prefix, *row.suffixes] if shared else [[*row.prefix, *suffix] for suffix in row.suffixes]
        prefixes += [-1] * shared + [first if shared else -1] * len(row.suffixes)
        reads += [0] * shared + [1] * len(row.suffixes)
    ends = np.cumsum([len(piece) for piece in pieces]) - 1
    return _packed(pieces, prefixes, ends[np.array(reads) > 0], tuple(reads))


def pad_right(rows: Sequence[Replies], pad_id: int) -> dict[str, torch.Tensor]:
    """Every reply as a whole row of its own, padded on the right: what encoders take. [n, T] ids and mask."""
    sequences = [row.prefix + suffix for row in rows for suffix in row.suffixes]
    lengths = np.array([len(ids) for ids in sequences])
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(mask.shape, pad_id, dtype=np.int64)
    ids[mask] = np.concatenate([np.asarray(s, dtype=np.int64) for s in sequences])
    return {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask.astype(np.int64))}


def _packed(
    pieces: Sequence[Sequence[int]], prefixes: Sequence[int], places: np.ndarray, reads: tuple[int, ...] | None
) -> PackedRows:
    lengths = np.array([len(piece) for piece in pieces])
    begins = np.zeros(len(pieces), dtype=np.int64)  # positions
    for segment, prefix in enumerate(prefixes):
        if prefix >= 0:
            begins[segment] = begins[prefix] + lengths[prefix]
    ids = np.concatenate([np.asarray(piece, dtype=np.int64) for piece in pieces])
    starts = np.cumsum(lengths) - lengths
    positions = np.arange(len(ids)) + np.repeat(begins - starts, lengths)
    tensors = [torch.from_numpy(part) for part in (ids, positions, places)]
    return PackedRows(tensors[0], tensors[1], tensors[2], tuple(lengths.tolist()), tuple(prefixes), reads)


def _varlen(rows: PackedRows, device) -> Varlen:
    spans = rows.spans()
    seen = [len(span) for span in spans]
    keys = None
    if any(prefix >= 0 for prefix in rows.prefixes):
        keys = torch.from_numpy(np.concatenate(spans)).to(device, non_blocking=True)
    query_starts, key_starts = (
        torch.tensor([0, *accumulate(lengths)], dtype=torch.int32).to(device, non_blocking=True)
        for lengths in (rows.lengths, seen)
    )
    return Varlen(query_starts, key_starts, keys, max(rows.lengths), max(seen))
