"""What many texts begin with, computed once: its keys and values stay, and the next texts take what they share.

Design decisions:
- A prefix is one sequence. Replies to a conversation share it at once, the turns of a conversation one after the
  other; `reach` keeps what the old and the new ids have in common and computes the rest.
- Tails are laid end to end, `[tokens, ...]`, without padding; the prefix is one matrix product for all of them, only
  what a tail sees of itself is done side by side, in groups of similar length.
- The last layer is finished where its output is read and nowhere else.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
import torch.nn.functional as F

from lmgym.batching import length_batches
from lmgym.models.fast.families import Family
from lmgym.models.fast.joined import versions
from lmgym.models.packing import similar
from lmgym.text import common_prefix

ROOM_STEP = 256  # the room of keys and values grows by this: a copy at every token would cost more than the token
WEIGHTS_AT_ONCE = 1 << 26  # attention weights in memory at a time


@final
class Prefix:
    """Keys and values, a layer [key heads, room, D], of the `ids` at hand. Changed weights make it forget them."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.ids: list[int] = []
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self.computed = 0  # tokens, of all calls
        self._of: list[tuple[int, int]] = []

    def forget(self) -> None:
        """For changes of weights that leave no trace."""
        self._of = []

    @torch.inference_mode()
    def reach(self, ids: Sequence[int], last: bool = False) -> torch.Tensor | None:
        """Holds exactly these ids from here on; with `last` the hidden state [1, W] of the last one, before the head.

        Interrupted on the way it holds what it held in common with them.
        """
        ids = list(ids)
        now = versions(self.family.weights())
        if now != self._of:
            self.ids, self._of = [], now
        shared = common_prefix([[*self.ids, -1], [*ids, -2]])
        if last:
            shared = min(shared, len(ids) - 1)
        self.ids = self.ids[:shared]
        hidden = self._extend(ids[shared:], last) if len(ids) > shared else None
        self.ids = ids
        return hidden

    def _extend(self, new: list[int], last: bool) -> torch.Tensor | None:
        family, start, end = self.family, len(self.ids), len(self.ids) + len(new)
        device = family.device
        hidden = family.embed(torch.tensor(new, device=device), torch.arange(start, end, device=device))
        # a row sees what was before and itself
        mask = None
        if start:
            mask = torch.ones(len(new), end, dtype=torch.bool, device=device).tril_(start)
        for layer in range(family.layers):
            q, k, v = (states.transpose(0, 1) for states in family.project(layer, hidden))
            q, k = q.to(v.dtype), k.to(v.dtype)  # sums and rotations may be fp32
            self._store(layer, k, v, start)
            if layer == family.layers - 1:
                if not last:
                    return None
                q, hidden, mask = q[:, -1:], hidden[-1:], None
            attended = F.scaled_dot_product_attention(
                q[None],
                self.keys[layer][None, :, :end],
                self.values[layer][None, :, :end],
                attn_mask=mask,
                is_causal=not start and q.shape[1] > 1,
                scale=family.scaling,
                enable_gqa=True,
            )
            hidden = family.finish(layer, hidden, attended[0].transpose(0, 1).flatten(1))
        self.computed += len(new)
        return hidden

    def _store(self, layer: int, keys: torch.Tensor, values: torch.Tensor, start: int) -> None:
        end = start + keys.shape[1]
        for kept, new in ((self.keys, keys), (self.values, values)):
            if layer == len(kept):
                kept.append(new.new_empty(new.shape[0], 0, new.shape[2]))
            if end > kept[layer].shape[1] or kept[layer].dtype != new.dtype or kept[layer].device != new.device:
                room = -(-end // ROOM_STEP) * ROOM_STEP
                grown = new.new_empty(new.shape[0], room, new.shape[2])
                grown[:, :start] = kept[layer][:, :start]
                kept[layer] = grown
            kept[layer][:, start:end] = new

    @torch.inference_mode()
    def tails(self, tails: Sequence[Sequence[int]]) -> torch.Tensor:
        """Hidden states [n, W], before the head, of the last token of each tail (one token at least) behind the ids."""
        lengths = np.array([len(tail) for tail in tails])
        heads = self.keys[0].shape[0] if self.keys else 1
        most = WEIGHTS_AT_ONCE // (heads * (len(self.ids) + int(lengths.max())))
        batches = length_batches(lengths.tolist(), max(1, most))
        found = torch.cat([self._ends([tails[i] for i in batch], lengths[batch]) for batch in batches])
        order = torch.tensor([i for batch in batches for i in batch], device=found.device)
        return torch.empty_like(found).index_copy_(0, order, found)

    def _ends(self, tails: Sequence[Sequence[int]], lengths: np.ndarray) -> torch.Tensor:
        family, device, start = self.family, self.family.device, len(self.ids)
        ids = np.concatenate([np.asarray(tail, dtype=np.int64) for tail in tails])
        firsts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        within = np.arange(len(ids)) - np.repeat(firsts, lengths)
        ends = torch.from_numpy(firsts + lengths - 1).to(device)
        groups = [_Group.of(members, firsts, lengths, device) for members in similar(lengths)]
        hidden = family.embed(torch.from_numpy(ids).to(device), torch.from_numpy(within + start).to(device))
        for layer in range(family.layers):
            q, k, v = family.project(layer, hidden)
            q, k = q.to(v.dtype), k.to(v.dtype)
            if layer == family.layers - 1:
                q, hidden, groups = q[ends], hidden[ends], [group.ends_only() for group in groups]
            keys, values = (kept[layer][:, :start] if start else None for kept in (self.keys, self.values))
            q, attended = q * family.scaling, torch.empty_like(q)
            for group in groups:
                attended[group.places] = group.attend(q, k, v, keys, values)
            hidden = family.finish(layer, hidden, attended.flatten(1))
        return hidden


@dataclass(frozen=True)
class _Group:
    """B tails of similar length side by side, at most L tokens; Q tokens of each ask: all, or the last."""

    slots: torch.Tensor
    """[B, L] int64: which of the N tokens; empty slots repeat the tail's first"""
    asking: torch.Tensor
    """[B, Q] int64: which of the queries"""
    filled: torch.Tensor
    """[m] int64: which of the flattened [B * Q] are queries"""
    mask: torch.Tensor
    """[1 or B, Q, 1, L]: minus infinity where a query may not look"""
    members: torch.Tensor
    """[B] int64: which of the tails"""
    lengths: torch.Tensor

    @property
    def places(self) -> torch.Tensor:
        """[m] int64: which of the queries, as `attend` gives them."""
        return self.asking.flatten()[self.filled]

    @staticmethod
    def of(members: np.ndarray, firsts: np.ndarray, lengths: np.ndarray, device) -> "_Group":
        """All tokens of these tails ask."""
        longest = int(lengths[members].max())
        column = np.arange(longest)
        real = column < lengths[members][:, None]
        slots = torch.from_numpy(np.where(real, firsts[members][:, None] + column, firsts[members][:, None])).to(device)
        return _Group(
            slots,
            slots,
            torch.from_numpy(np.flatnonzero(real)).to(device),
            torch.full((longest, longest), -torch.inf, device=device).triu_(1)[None, :, None],
            torch.from_numpy(members).to(device),
            torch.from_numpy(lengths[members]).to(device),
        )

    def ends_only(self) -> "_Group":
        """The last token of each tail asks; queries are numbered as tails."""
        column = torch.arange(self.slots.shape[1], device=self.slots.device)
        mask = torch.zeros(self.slots.shape, device=column.device)
        mask.masked_fill_(column >= self.lengths[:, None], -torch.inf)
        rows = torch.arange(len(self.members), device=column.device)
        return replace(self, asking=self.members[:, None], filled=rows, mask=mask[:, None, None])

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keys: Any, values: Any) -> torch.Tensor:
        """[m, heads, D] of scaled queries [Nq, heads, D] over a prefix's keys [key heads, P, D], if any, and their own.

        The queries of all tails that share a key head are one product with the prefix.
        """
        asking, heads, (key_heads, width) = self.asking.shape[1], q.shape[1], k.shape[1:]
        before = 0 if keys is None else keys.shape[1]
        # [key heads, B, Q * group, D]
        queries = q[self.asking].unflatten(2, (key_heads, -1)).permute(2, 0, 1, 3, 4).flatten(2, 3)
        own_keys, own_values = (states[self.slots].permute(2, 0, 1, 3).flatten(0, 1) for states in (k, v))
        weights = q.new_empty(*queries.shape[:3], before + self.slots.shape[1])
        # two views of the same weights: all tails' on the prefix, and each tail's on itself
        on_prefix, on_own = weights.flatten(1, 2)[..., :before], weights.flatten(0, 1)[..., before:]
        if keys is not None:
            torch.bmm(queries.flatten(1, 2), keys.transpose(1, 2), out=on_prefix)
        torch.bmm(queries.flatten(0, 1), own_keys.transpose(1, 2), out=on_own)
        weights[..., before:].unflatten(2, (asking, -1)).add_(self.mask.to(weights.dtype))
        torch.softmax(weights, -1, out=weights)
        found = torch.bmm(on_own, own_values).view(queries.shape)
        if keys is not None:
            found += torch.bmm(on_prefix, values).view(queries.shape)
        found = found.unflatten(2, (asking, -1)).permute(1, 2, 0, 3, 4).reshape(-1, heads, width)
        return found[self.filled]
