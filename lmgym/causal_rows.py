"""Rows of tokens through a causal model without padding, read at chosen places; gradients flow, layer by layer.

Design decisions:
- Rows lie end to end, `[N, ...]`, in every linear layer; attention lays them side by side in groups of similar length.
- The last layer is finished only where its output is read: of a row with a prompt of 100 tokens and a reply of 50,
  a third of its work remains.
- It may begin above the lowest layers, from their states: what is frozen is computed once (ppo/trunk.py).
- The layers are those of lmgym/families.py, called as modules, so ZeRO-3's hooks and adapters work. No dropout.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from lmgym.families import Family
from lmgym.packing import similar

CHUNK_LOGITS = 1 << 26  # logits of so many numbers at once; more are computed again in the backward


@dataclass(frozen=True)
class Group:
    """B rows of at most T tokens side by side, of which at most Q a row are read."""

    slots: torch.Tensor
    """[B, T] int64: which of the N tokens; empty slots, on the right, repeat the row's first"""
    filled: torch.Tensor
    """[n] int64: which of the flattened [B * T] are tokens"""
    read: torch.Tensor
    """[B, Q] int64: which of the N tokens are read; rows with fewer repeat one"""
    read_filled: torch.Tensor
    """[m] int64: which of the flattened [B * Q] are read"""
    columns: torch.Tensor
    """[B, Q] int64: where in its row each of `read` stands"""


@dataclass(frozen=True)
class CausalRows:
    """A batch: N tokens of some rows, of which M are read."""

    ids: torch.Tensor
    """[N] int64"""
    positions: torch.Tensor
    """[N] int64"""
    places: torch.Tensor
    """[M] int64: which of the N are read, row after row"""
    order: torch.Tensor
    """[N] int64: where each token stands in the groups' `filled`, joined"""
    read_order: torch.Tensor
    """[M] int64: the same of what is read"""
    groups: tuple[Group, ...]

    def to(self, device) -> "CausalRows":
        """The same on another device."""
        groups = tuple(Group(*(getattr(g, f.name).to(device) for f in fields(g))) for g in self.groups)
        tensors = {f.name: getattr(self, f.name).to(device) for f in fields(self) if f.name != "groups"}
        return CausalRows(**tensors, groups=groups)


def lay(rows: Sequence[Sequence[int]], reads: Sequence[int], skip: int = 1) -> CausalRows:
    """Rows of ids as a batch that reads the `reads[i]` places of row i before its last `skip` tokens.

    With skip 1 these are the places whose next tokens are the row's last `reads[i]`; with 0 the last places themselves.
    """
    lengths, counts = np.array([len(row) for row in rows]), np.asarray(reads)
    firsts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    ids = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    positions = np.arange(len(ids)) - np.repeat(firsts, lengths)
    read_firsts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    within = np.arange(counts.sum()) - np.repeat(read_firsts, counts)
    first_columns = lengths - skip - counts
    places = np.repeat(firsts + first_columns, counts) + within
    groups, order, read_order = [], np.empty(len(ids), np.int64), np.empty(len(places), np.int64)
    tokens_before = reads_before = 0
    for members in similar(lengths):
        group, own, own_reads = _group(members, lengths, firsts, counts, first_columns, read_firsts)
        groups.append(group)
        order[own] = np.arange(tokens_before, tokens_before + len(own))
        read_order[own_reads] = np.arange(reads_before, reads_before + len(own_reads))
        tokens_before, reads_before = tokens_before + len(own), reads_before + len(own_reads)
    arrays = {"ids": ids, "positions": positions, "places": places, "order": order, "read_order": read_order}
    return CausalRows(**{name: torch.from_numpy(array) for name, array in arrays.items()}, groups=tuple(groups))


def _group(members, lengths, firsts, counts, first_columns, read_firsts) -> tuple[Group, np.ndarray, np.ndarray]:
    """A group, its tokens among the N, and its reads among the M; rows and places in the order of the group."""
    column = np.arange(int(lengths[members].max()))
    real = column < lengths[members][:, None]
    slots = np.where(real, firsts[members][:, None] + column, firsts[members][:, None])
    turn = np.arange(max(1, int(counts[members].max())))
    wanted = turn < counts[members][:, None]
    columns = first_columns[members][:, None] + np.where(wanted, turn, 0)
    columns = np.clip(columns, 0, lengths[members][:, None] - 1)
    read = firsts[members][:, None] + columns
    own_reads = (read_firsts[members][:, None] + turn)[wanted]
    arrays = (slots, np.flatnonzero(real), read, np.flatnonzero(wanted), columns)
    return Group(*(torch.from_numpy(array) for array in arrays)), slots[real], own_reads


def run_layers(
    family: Family, batch: CausalRows, hidden: torch.Tensor | None = None, first: int = 0, last: int | None = None,
    recompute: bool = False,
) -> torch.Tensor:  # fmt: skip
    """States [N, W] after the layers `first` to `last` (without the last); with `last` None [M, W] of what is read.

    `hidden` are the states [N, W] before layer `first`; None embeds the ids. `recompute` keeps only the states between
    layers for the backward.
    """
    embedded = family.embed(batch.ids, batch.positions)  # also tells the layers the positions
    hidden = embedded if hidden is None else hidden
    end = family.layers if last is None else last
    for layer in range(first, end):
        read_only = last is None and layer == family.layers - 1
        if recompute and torch.is_grad_enabled():
            hidden = checkpoint(_layer, family, batch, layer, hidden, read_only, use_reentrant=False)
        else:
            hidden = _layer(family, batch, layer, hidden, read_only)
    return hidden


def _layer(family: Family, batch: CausalRows, layer: int, hidden: torch.Tensor, read_only: bool) -> torch.Tensor:
    queries, keys, values = family.project(layer, hidden)
    # under autocast a rotation or a norm makes fp32 of queries and keys: the values tell the working precision
    queries, keys = queries.to(values.dtype), keys.to(values.dtype)
    found = [_attend(queries, keys, values, group, family.scaling, read_only) for group in batch.groups]
    attended = torch.cat(found) if len(found) > 1 else found[0]
    attended = attended.index_select(0, batch.read_order if read_only else batch.order)
    if read_only:
        hidden = hidden.index_select(0, batch.places)
    return family.finish(layer, hidden, attended)


def _attend(queries, keys, values, group: Group, scaling: float, read_only: bool) -> torch.Tensor:
    """[n, heads * D] of a group's tokens, or [m, heads * D] of those that are read."""
    asking = group.read if read_only else group.slots
    q, k, v = _rows(queries, asking), _rows(keys, group.slots), _rows(values, group.slots)
    if k.shape[1] != q.shape[1]:
        k, v = (states.repeat_interleave(q.shape[1] // states.shape[1], dim=1) for states in (k, v))
    length = group.slots.shape[1]
    mask = None
    if read_only:
        mask = (torch.arange(length, device=q.device) <= group.columns[..., None])[:, None]
    if q.dtype == torch.bfloat16 and q.device.type == "cpu":
        found = _by_products(q, k, v, scaling, mask, length)
    else:
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=scaling)
    flat = found.transpose(1, 2).flatten(0, 1).flatten(1)
    return flat.index_select(0, group.read_filled if read_only else group.filled)


def _rows(states: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """[N, heads, D] as [B, heads, slots, D]."""
    heads, width = states.shape[1:]
    return states.flatten(1).index_select(0, slots.flatten()).view(*slots.shape, heads, width).transpose(1, 2)


def _by_products(q, k, v, scaling: float, mask: torch.Tensor | None, length: int) -> torch.Tensor:
    """On a CPU in bf16 torch's fused kernel takes 2.4 times as long as plain products (16 rows of 160, 4 heads)."""
    allowed = torch.ones(length, length, dtype=torch.bool, device=q.device).tril() if mask is None else mask
    blocked = torch.zeros(allowed.shape, dtype=q.dtype, device=q.device).masked_fill_(
        ~allowed, torch.finfo(q.dtype).min
    )
    # autocast would run the softmax on fp32 copies; the kernel computes in fp32 and rounds its result anyway
    with torch.autocast(q.device.type, enabled=False):
        return torch.matmul(torch.matmul(q * scaling, k.transpose(2, 3)).add_(blocked).softmax(-1), v)


def token_logprobs(
    family: Family, normed: torch.Tensor, targets: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """Log-probabilities [M] in fp32 of targets [M] from states [M, W] behind the last norm, at a temperature.

    In chunks: logits of a large vocabulary are held for few tokens at a time, and computed again in the backward.
    """
    if not len(targets):
        return normed.new_zeros(0, dtype=torch.float32) + 0 * normed.sum().float()
    rows = max(1, CHUNK_LOGITS // vocabulary_of(family))
    if len(targets) <= rows:
        return _logprobs(family, normed, targets, temperature)
    pieces = []
    for chunk, wanted in zip(normed.split(rows), targets.split(rows), strict=True):
        if torch.is_grad_enabled():
            pieces.append(checkpoint(_logprobs, family, chunk, wanted, temperature, use_reentrant=False))
        else:
            pieces.append(_logprobs(family, chunk, wanted, temperature))
    return torch.cat(pieces)


def vocabulary_of(family: Family) -> int:
    """How many logits a token has."""
    [head] = family.output.layers
    return head.out_features


def _logprobs(family: Family, normed: torch.Tensor, targets: torch.Tensor, temperature: float) -> torch.Tensor:
    logits = family.logits(normed).float()
    if temperature not in (0, 1):
        logits = logits / temperature
    return logits.gather(1, targets[:, None])[:, 0] - logits.logsumexp(-1)
