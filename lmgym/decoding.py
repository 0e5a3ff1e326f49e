"""The forward of a causal model over cached keys and values, a token a row and step: the part that sampling repeats."""

import functools
from dataclasses import dataclass
from typing import Any

import torch

from lmgym.causal_rows import attend, lay, side_by_side, slots_of
from lmgym.families import Family, attention_dtype
from lmgym.prefixes import Prefix


@dataclass
class Cache:
    """Keys and values of P prompts, and of the n replies to each as they grow: R = P * n rows.

    `prompt_*` are a list over layers of [P * key heads, longest, D], filled from the left; `reply_*` of
    [P, key heads, n, room, D], of which `length` are filled: so all replies of a prompt and key head are one matrix.
    """

    prompt_keys: list[torch.Tensor]
    prompt_values: list[torch.Tensor]
    prompt_mask: torch.Tensor | None
    """[P, 1, 1, longest]: 0 where there is a token, minus infinity elsewhere; None where all are of one length"""
    prompt_lengths: torch.Tensor
    reply_keys: list[torch.Tensor]
    reply_values: list[torch.Tensor]
    length: int = 0

    @property
    def replies(self) -> int:
        """To each prompt."""
        return self.reply_keys[0].shape[2]

    @property
    def rows(self) -> int:
        """R."""
        return len(self.prompt_lengths) * self.replies

    @torch.inference_mode()
    def clear(self) -> None:
        """Zeros where no token stands yet."""
        for layer in (*self.reply_keys, *self.reply_values):
            layer[..., self.length :, :] = 0

    def keep(self, prompts: torch.Tensor, rows: torch.Tensor) -> None:
        """Only these prompts and rows, in this order; each prompt with as many rows."""
        for part in (self.reply_keys, self.reply_values):
            for layer, states in enumerate(part):
                kept = states.transpose(1, 2).flatten(0, 1)[rows].unflatten(0, (len(prompts), -1))
                part[layer] = kept.transpose(1, 2).contiguous()
        if len(prompts) != len(self.prompt_lengths):
            before, self.prompt_lengths = len(self.prompt_lengths), self.prompt_lengths[prompts]
            longest = int(self.prompt_lengths.max())
            if self.prompt_mask is not None:
                self.prompt_mask = self.prompt_mask[prompts][..., :longest]
            for part in (self.prompt_keys, self.prompt_values):
                part[:] = [layer.unflatten(0, (before, -1))[prompts][:, :, :longest].flatten(0, 1) for layer in part]


@torch.inference_mode()
def prefill(family: Family, prompts: list[list[int]], n: int, room: int) -> tuple[torch.Tensor, Cache]:
    """Logits [P, vocabulary] after each prompt, and the cache for n replies of up to `room` tokens to each."""
    batch, device = lay(prompts, [1] * len(prompts), skip=0).to(family.device), family.device
    counts = batch.lengths
    slots = slots_of(counts)
    slots = slots if slots is None else slots.to(device)
    hidden = family.embed(batch.ids, batch.positions)
    keys: list[torch.Tensor] = []
    values: list[torch.Tensor] = []
    for layer in range(family.layers):
        last = layer == family.layers - 1  # what follows is read at the ends only
        q, k, v = family.project(layer, hidden, batch.places if last else None)
        attended = attend(batch, q, k, v, family.scaling, last)
        hidden = family.finish(layer, hidden[batch.places] if last else hidden, attended)
        for kept, states in ((keys, k), (values, v)):
            laid = side_by_side(states.to(attention_dtype(v)), counts, slots)
            kept.append(laid.flatten(0, 1).contiguous())  # no view: it would keep all that was projected
    mask = None
    if slots is not None:
        mask = torch.full((len(prompts) * max(counts),), -torch.inf, dtype=keys[0].dtype, device=device)
        mask = mask.index_fill_(0, slots, 0).view(len(prompts), 1, 1, -1)
    return family.head(hidden), _with_room(keys, values, mask, torch.tensor(counts), n, room)


@torch.inference_mode()
def prefill_from(prefix: Prefix, prompt: list[int], n: int, room: int) -> tuple[torch.Tensor, Cache]:
    """The same for one prompt, of which what the prefix does not hold yet is computed. The cache reads its keys."""
    hidden = prefix.reach(prompt, last=True)
    assert hidden is not None
    keys, values = ([layer[:, : len(prompt)] for layer in part] for part in (prefix.keys, prefix.values))
    return prefix.family.head(hidden), _with_room(keys, values, None, torch.tensor([len(prompt)]), n, room)


def _with_room(
    keys: list[torch.Tensor],
    values: list[torch.Tensor],
    mask: torch.Tensor | None,
    lengths: torch.Tensor,
    n: int,
    room: int,
) -> Cache:
    prompts, width = len(lengths), keys[0].shape[2]
    empty = [k.new_empty(prompts, len(k) // prompts, n, room, width) for k in keys]
    return Cache(keys, values, mask, lengths.to(keys[0].device), empty, [torch.empty_like(e) for e in empty])


@torch.inference_mode()
def step(family: Family, ids: torch.Tensor, cache: Cache) -> torch.Tensor:
    """Logits [R, vocabulary] after one more token a row, which the cache then holds."""
    at = cache.length
    hidden = family.embed(ids, (cache.prompt_lengths + at).repeat_interleave(cache.replies))
    for layer in range(family.layers):
        q, k, v = family.project(layer, hidden)
        own = (cache.reply_keys[layer], cache.reply_values[layer])
        for kept, new in zip(own, (k, v), strict=True):
            kept[:, :, :, at] = _by_prompt(new, cache)
        keys, values = (kept[..., : at + 1, :] for kept in own)
        attended = _attend(q.to(keys.dtype) * family.scaling, cache, layer, keys, values)
        hidden = family.finish(layer, hidden, attended.to(v.dtype))
    cache.length += 1
    return family.head(hidden)


def _by_prompt(states: torch.Tensor, cache: Cache) -> torch.Tensor:
    """[R, key heads, D] as [P, key heads, n, D]."""
    return states.unflatten(0, (-1, cache.replies)).transpose(1, 2)


@torch.inference_mode()
def static_step(family: Family, ids: torch.Tensor, at: torch.Tensor, cache: Cache) -> torch.Tensor:
    """The same at a place `at` [1] that is a tensor: no shape depends on it, so that a CUDA graph can be replayed.

    The cache must hold no garbage (`Cache.clear`): what lies behind `at` gets weight 0, and 0 times NaN is NaN.
    """
    n, room = cache.replies, cache.reply_keys[0].shape[3]
    hidden = family.embed(ids, (cache.prompt_lengths + at)[:, None].expand(-1, n).reshape(-1))
    mask = torch.zeros(room, dtype=cache.reply_keys[0].dtype, device=at.device)
    mask.masked_fill_(torch.arange(room, device=at.device) > at, -torch.inf)
    for layer in range(family.layers):
        q, k, v = family.project(layer, hidden)
        own = (cache.reply_keys[layer], cache.reply_values[layer])
        for kept, new in zip(own, (k, v), strict=True):
            kept.index_copy_(3, at, _by_prompt(new.to(kept.dtype), cache)[:, :, :, None])
        attended = _attend(q.to(mask.dtype) * family.scaling, cache, layer, *own, mask)
        hidden = family.finish(layer, hidden, attended.to(v.dtype))
    return family.head(hidden)


@functools.cache
def _stream_aside(device: torch.device) -> torch.cuda.Stream:
    """One for all captures: what a stream has freed serves that stream alone."""
    return torch.cuda.Stream(device)


class GraphedStep:
    """`step` of one cache on a GPU, captured once and replayed: one launch instead of hundreds.

    Rows that leave the cache end it. The logits that it gives are overwritten by the next call.
    """

    @torch.inference_mode()
    def __init__(self, family: Family, cache: Cache) -> None:
        self.cache, device = cache, family.device
        cache.clear()
        self.ids = torch.zeros(cache.rows, dtype=torch.int64, device=device)
        self.at = torch.full((1,), cache.length, dtype=torch.int64, device=device)
        # what a capture runs for the first time would be captured with its one-time work; it writes where the first
        # replay will write over it
        aside = _stream_aside(device)
        aside.wait_stream(torch.cuda.current_stream(device))
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(aside):
            for _ in range(2):
                static_step(family, self.ids, self.at, cache)
            # not by torch.cuda.graph: it hands cached memory back to the driver, of which the next updates ask again
            self.graph.capture_begin()
            try:
                self.logits = static_step(family, self.ids, self.at, cache)
            finally:
                self.graph.capture_end()
        torch.cuda.current_stream(device).wait_stream(aside)

    @torch.inference_mode()
    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits [R, vocabulary] after one more token a row."""
        self.ids.copy_(ids)
        self.at.fill_(self.cache.length)
        self.graph.replay()
        self.cache.length += 1
        return self.logits


def _attend(
    queries: torch.Tensor, cache: Cache, layer: int, keys: torch.Tensor, values: torch.Tensor, mask: Any = None
) -> torch.Tensor:
    """[R, heads * D]: each row's scaled queries over its prompt, read once for all its replies, and its own tokens.

    keys, values: [P, key heads, n, own, D]; mask: [own], added to what a row makes of its own tokens.
    """
    prompt_keys, prompt_values = cache.prompt_keys[layer], cache.prompt_values[layer]
    (prompts, key_heads, n, own, width), longest = keys.shape, prompt_keys.shape[1]
    group = queries.shape[1] // key_heads
    # queries of one prompt and key head together
    together = queries.reshape(prompts, n, key_heads, group, width).transpose(1, 2).reshape(-1, n * group, width)
    # a prompt's rows on the prompt, and each row on its own tokens; apart, since into a part of a larger tensor torch
    # multiplies matrix by matrix
    on_prompt = torch.bmm(together, prompt_keys.transpose(1, 2))
    on_own = torch.bmm(together.reshape(-1, group, width), keys.flatten(0, 2).transpose(1, 2))
    if cache.prompt_mask is not None:
        on_prompt.unflatten(0, (prompts, key_heads)).add_(cache.prompt_mask)
    if mask is not None:
        on_own.add_(mask)
    weights = torch.cat((on_prompt, on_own.view(len(together), n * group, own)), -1)
    torch.softmax(weights, -1, out=weights)
    found = torch.bmm(weights[..., :longest], prompt_values).view(-1, group, width)
    found = found.baddbmm_(weights[..., longest:].unflatten(1, (n, group)).flatten(0, 1), values.flatten(0, 2))
    return found.reshape(prompts, key_heads, n, group * width).transpose(1, 2).reshape(len(queries), -1)
