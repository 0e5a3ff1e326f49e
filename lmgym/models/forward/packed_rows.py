"""Rows of tokens end to end, without padding: the input of one packed forward of a decoder.

Design decisions:
- Rows are cut into segments. A segment sees itself, causally, and may continue another one, which it sees whole. So
  `prefix + suffix 1 + suffix 2 + ...` runs the prefix once, and each suffix gets the score of its row alone.
- Lengths are plain integers: reading them never synchronises with the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import torch

from lmgym.models.forward.choices import Choices
from lmgym.text import Replies


@dataclass(frozen=True)
class Varlen:
    """Arguments of a flash attention kernel: S segments, K keys (a prefix once for each segment that continues it)."""

    query_starts: torch.Tensor
    """[S + 1] int32"""
    key_starts: torch.Tensor
    """[S + 1] int32"""
    keys: torch.Tensor | None
    """[K] int64: tokens by index; None if no segment continues another: all N, in order"""
    longest_query: int
    longest_key: int


@dataclass(frozen=True)
class PackedRows:
    """N tokens in S segments; states are read at M of the tokens."""

    ids: torch.Tensor
    """[N] int64"""
    positions: torch.Tensor
    """[N] int64; a segment's follow those of the segment that it continues"""
    places: torch.Tensor
    """[M] int64: tokens that are read, by index, in the order of the outputs"""
    lengths: tuple[int, ...]
    """[S]: tokens of each segment; they add up to N"""
    prefixes: tuple[int, ...]
    """[S]: the earlier segment that each one continues; -1: none"""
    reads: tuple[int, ...] | None = None
    """[S]: how many of each segment's last tokens are read, in order; None if `places` are others"""
    varlen: Varlen | None = None
    """only on a GPU"""
    choices: Choices | None = None
    """of a policy over actions: the M tokens that are read are those of candidates"""

    def to(self, device) -> "PackedRows":
        """The same on another device."""
        moved = self._map(lambda tensor: tensor.to(device, non_blocking=True))
        if torch.device(device).type == "cuda" and moved.varlen is None:
            return replace(moved, varlen=_varlen(self, device))
        return moved

    def pin_memory(self) -> "PackedRows":
        """The same in pinned memory, for the loader."""
        return self._map(torch.Tensor.pin_memory)

    def _map(self, function) -> "PackedRows":
        choices = None if self.choices is None else self.choices.map(function)
        ids, positions, places = map(function, (self.ids, self.positions, self.places))
        return replace(self, ids=ids, positions=positions, places=places, choices=choices)

    def spans(self) -> list[np.ndarray]:
        """Indices of each segment's tokens, after those of the segments that it continues."""
        spans: list[np.ndarray] = []
        for end, length, prefix in zip(accumulate(self.lengths), self.lengths, self.prefixes, strict=True):
            segment = np.arange(end - length, end)
            spans.append(segment if prefix < 0 else np.concatenate([spans[prefix], segment]))
        return spans


def pack_rows(rows: Sequence[Sequence[int]], num_targets: Sequence[int]) -> PackedRows:
    """Rows of ids, read where the next tokens are a row's last `num_targets`; the last token itself is left out."""
    inputs = [row[:-1] for row in rows]
    ends = accumulate(len(row) for row in inputs)
    places = [np.arange(end - count, end) for end, count in zip(ends, num_targets, strict=True)]
    return _pack(inputs, [-1] * len(rows), np.concatenate(places), tuple(num_targets))


def pack_places(rows: Sequence[Sequence[int]], places: Sequence[Sequence[int]]) -> PackedRows:
    """Rows of ids, each read at the given places within it, row after row."""
    starts = accumulate((len(row) for row in rows[:-1]), initial=0)
    indices = [np.asarray(within, dtype=np.int64) + start for start, within in zip(starts, places, strict=True)]
    return _pack(rows, [-1] * len(rows), np.concatenate(indices), None)


def pack_last_tokens(rows: Sequence[Sequence[int]]) -> PackedRows:
    """Rows of ids, each read at its last token."""
    ends = np.cumsum([len(row) for row in rows]) - 1
    return _pack(rows, [-1] * len(rows), ends, (1,) * len(rows))


def pack_replies(rows: Sequence[Replies], whole: bool = False) -> PackedRows:
    """Rows of replies, each read at its last token or, if `whole`, at every token of its suffix, row after row.

    A shared prefix runs once.
    """
    pieces: list[Sequence[int]] = []
    prefixes: list[int] = []
    reads: list[int] = []
    for row in rows:
        own = [len(suffix) if whole else 1 for suffix in row.suffixes]
        if len(row.suffixes) > 1 and row.prefix:
            prefixes += [-1, *[len(pieces)] * len(row.suffixes)]
            pieces += [row.prefix, *row.suffixes]
            reads += [0, *own]
        else:
            prefixes += [-1] * len(row.suffixes)
            pieces += [[*row.prefix, *suffix] for suffix in row.suffixes]
            reads += own
    return pack_segments(pieces, prefixes, reads)


def pack_segments(pieces: Sequence[Sequence[int]], prefixes: Sequence[int], reads: Sequence[int]) -> PackedRows:
    """Segments of ids, each after the earlier one that it continues (-1: none), read at the last `reads` of it."""
    ends = accumulate(map(len, pieces))
    places = [np.arange(end - count, end) for end, count in zip(ends, reads, strict=True)]
    return _pack(pieces, prefixes, np.concatenate(places), tuple(reads))


def pack_choices(
    prompts: Sequence[Sequence[int]],
    candidates: Sequence[Sequence[Sequence[int]]],
    divisors: Sequence[Sequence[float]],
    chosen: Sequence[int],
) -> tuple[PackedRows, torch.Tensor]:
    """Choices among candidates, ids with their end of turn, after a prompt; and the ids [M] of all candidates.

    A prompt runs once, but for its last token, which each candidate begins with; so do candidates after it that several
    choices are among.
    """
    asked = [(tuple(prompt), tuple(map(tuple, own))) for prompt, own in zip(prompts, candidates, strict=True)]
    row_of = {key: row for row, key in enumerate(dict.fromkeys(asked))}
    rows = [Replies(list(prompt[:-1]), [[prompt[-1], *ids[:-1]] for ids in own]) for prompt, own in row_of]
    divisor_of = dict(zip(asked, divisors, strict=True))
    lengths = [[len(ids) for ids in own] for _, own in row_of]
    choices = Choices.of(lengths, [divisor_of[key] for key in row_of], [row_of[key] for key in asked], chosen)
    targets = torch.tensor([token for _, own in row_of for ids in own for token in ids])
    return replace(pack_replies(rows, whole=True), choices=choices), targets


def pad_right(rows: Sequence[Replies], pad_id: int) -> dict[str, torch.Tensor]:
    """Ids and mask [n, T] of every reply as a whole row, padded on the right, for encoders."""
    sequences = [row.prefix + suffix for row in rows for suffix in row.suffixes]
    lengths = np.array([len(ids) for ids in sequences])
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(mask.shape, pad_id, dtype=np.int64)
    ids[mask] = np.concatenate([np.asarray(s, dtype=np.int64) for s in sequences])
    return {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask.astype(np.int64))}


def _pack(
    pieces: Sequence[Sequence[int]], prefixes: Sequence[int], places: np.ndarray, reads: tuple[int, ...] | None
) -> PackedRows:
    lengths = np.array([len(piece) for piece in pieces])
    first_positions = np.zeros(len(pieces), dtype=np.int64)
    for segment, prefix in enumerate(prefixes):
        if prefix >= 0:
            first_positions[segment] = first_positions[prefix] + lengths[prefix]
    ids = np.concatenate([np.asarray(piece, dtype=np.int64) for piece in pieces])
    starts = np.cumsum(lengths) - lengths
    positions = np.arange(len(ids)) + np.repeat(first_positions - starts, lengths)
    return PackedRows(
        ids=torch.from_numpy(ids),
        positions=torch.from_numpy(positions),
        places=torch.from_numpy(places),
        lengths=tuple(lengths.tolist()),
        prefixes=tuple(prefixes),
        reads=reads,
    )


def _varlen(rows: PackedRows, device) -> Varlen:
    spans = rows.spans()
    key_lengths = [len(span) for span in spans]
    keys = None
    if any(prefix >= 0 for prefix in rows.prefixes):
        keys = torch.from_numpy(np.concatenate(spans)).to(device, non_blocking=True)
    query_starts, key_starts = (
        torch.tensor([0, *accumulate(lengths)], dtype=torch.int32).to(device, non_blocking=True)
        for lengths in (rows.lengths, key_lengths)
    )
    return Varlen(query_starts, key_starts, keys, max(rows.lengths), max(key_lengths))
