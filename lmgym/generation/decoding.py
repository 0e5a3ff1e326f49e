"""The forward of a causal model over cached keys and values, a token a row and step: the part that sampling repeats."""

import functools
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from lmgym.models.causal_rows import attend, lay, side_by_side, slots_of
from lmgym.models.fast.families import Family, attention_dtype
from lmgym.models.prefixes import Prefix


@dataclass
class Cache:
    """Keys and values of P prompts, and of the n replies to each as they grow: R = P * n rows.

    Several replies share their prompt: `prompt_*` are a list over layers of [P * key heads, longest, D], filled from
    the left, and `reply_*` of [P, key heads, n, room, D], so that all replies of a prompt and key head are one matrix.
    A single reply is its prompt's own row: `prompt_*` are empty, and `reply_*` begin with the prompts, which end at
    place `first`; then attention is one product instead of two.
    """

    prompt_keys: list[torch.Tensor]
    prompt_values: list[torch.Tensor]
    mask: torch.Tensor | None
    """[P * key heads, 1, longest], or to the end of the room: 0 where there may be a token, minus infinity where never;
    None where all prompts are of one length"""
    prompt_lengths: torch.Tensor
    reply_keys: list[torch.Tensor]
    reply_values: list[torch.Tensor]
    first: int = 0
    length: int = 0
    """tokens of each reply"""
    tap: int | None = None
    """a layer: `tapped` are the states [tokens, W] that the last call gave it"""
    tapped: torch.Tensor | None = None

    @property
    def replies(self) -> int:
        """To each prompt."""
        return self.reply_keys[0].shape[2]

    @property
    def rows(self) -> int:
        """R."""
        return len(self.prompt_lengths) * self.replies

    @property
    def end(self) -> int:
        """The place of the next token in `reply_*`."""
        return self.first + self.length

    @property
    def own_mask(self) -> torch.Tensor | None:
        """`mask` where it is of `reply_*`: of single replies."""
        return self.mask if self.first else None

    @torch.inference_mode()
    def clear(self) -> None:
        """Zeros where no token stands yet."""
        for layer in (*self.reply_keys, *self.reply_values):
            layer[..., self.end :, :] = 0

    def keep(self, prompts: torch.Tensor, rows: torch.Tensor) -> None:
        """Only these prompts and rows, in this order; each prompt with as many rows."""
        before, fewer = len(self.prompt_lengths), len(prompts) != len(self.prompt_lengths)
        if fewer:
            self.prompt_lengths = self.prompt_lengths[prompts]
        longest = int(self.prompt_lengths.max()) if fewer else 0
        # a single reply's prompt stands on the right of its place: what only longer ones took is cut off
        cut = self.first - longest if fewer and self.first else 0
        for part in (self.reply_keys, self.reply_values):
            for layer, states in enumerate(part):
                if self.first:
                    part[layer] = states.index_select(0, rows)[..., cut:, :]
                    continue
                kept = states.transpose(1, 2).flatten(0, 1)[rows].unflatten(0, (len(prompts), -1))
                part[layer] = kept.transpose(1, 2).contiguous()
        self.first -= cut
        if not fewer:
            return
        if self.mask is not None:
            kept = self.mask.unflatten(0, (before, -1))[prompts].flatten(0, 1)
            self.mask = kept[..., cut:] if self.first else kept[..., :longest]
        for part in (self.prompt_keys, self.prompt_values):
            part[:] = [layer.unflatten(0, (before, -1))[prompts][:, :, :longest].flatten(0, 1) for layer in part]


@torch.inference_mode()
def prefill(
    family: Family, prompts: list[list[int]], n: int, room: int, tap: int | None = None
) -> tuple[torch.Tensor, Cache]:
    """Logits [P, vocabulary] after each prompt, and the cache for n replies of up to `room` tokens to each."""
    batch, device = lay(prompts, [1] * len(prompts), skip=0).to(family.device), family.device
    counts = batch.lengths
    slots = slots_of(counts, to_the_right=n == 1)
    slots = slots if slots is None else slots.to(device)
    hidden = family.embed(batch.ids, batch.positions)
    keys: list[torch.Tensor] = []
    values: list[torch.Tensor] = []
    tapped = None
    for layer in range(family.layers):
        tapped = hidden if layer == tap else tapped
        last = layer == family.layers - 1  # what follows is read at the ends only
        q, k, v = family.project(layer, hidden, batch.places if last else None)
        attended = attend(batch, q, k, v, family.scaling, last)
        hidden = family.finish(layer, hidden[batch.places] if last else hidden, attended)
        for kept, states in ((keys, k), (values, v)):
            laid = side_by_side(states.to(attention_dtype(v)), counts, slots)
            # no view: it would keep all that was projected
            kept.append(_with_room(laid, room) if n == 1 else laid.flatten(0, 1).contiguous())
    mask = None
    if slots is not None:
        mask = torch.full((len(prompts) * max(counts),), -torch.inf, dtype=keys[0].dtype, device=device)
        mask = mask.index_fill_(0, slots, 0).view(len(prompts), -1)
        mask = F.pad(mask, (0, room)) if n == 1 else mask
        mask = mask.repeat_interleave(k.shape[1], 0)[:, None]
    logits, lengths = family.head(hidden), torch.tensor(counts, device=device)
    if n == 1:
        cache = Cache([], [], mask, lengths, keys, values, max(counts))
    else:
        cache = _shared(keys, values, mask, lengths, n, room)
    cache.tap, cache.tapped = tap, tapped
    return logits, cache


@torch.inference_mode()
def prefill_from(prefix: Prefix, prompt: list[int], n: int, room: int) -> tuple[torch.Tensor, Cache]:
    """The same for one prompt, of which what the prefix does not hold yet is computed."""
    hidden = prefix.reach(prompt, last=True)
    assert hidden is not None
    keys, values = ([layer[:, : len(prompt)] for layer in part] for part in (prefix.keys, prefix.values))
    logits, lengths = prefix.family.head(hidden), torch.tensor([len(prompt)], device=prefix.family.device)
    if n == 1:
        keys, values = ([_with_room(layer[None], room) for layer in part] for part in (keys, values))
        return logits, Cache([], [], None, lengths, keys, values, len(prompt))
    return logits, _shared(keys, values, None, lengths, n, room)


def _with_room(states: torch.Tensor, room: int) -> torch.Tensor:
    """[P, key heads, T, D] as [P, key heads, 1, T + room, D]."""
    prompts, heads, longest, width = states.shape
    found = states.new_empty(prompts, heads, 1, longest + room, width)
    found[:, :, 0, :longest] = states
    return found


def _shared(
    keys: list[torch.Tensor],
    values: list[torch.Tensor],
    mask: torch.Tensor | None,
    lengths: torch.Tensor,
    n: int,
    room: int,
) -> Cache:
    prompts, width = len(lengths), keys[0].shape[2]
    empty = [k.new_empty(prompts, len(k) // prompts, n, room, width) for k in keys]
    return Cache(keys, values, mask, lengths, empty, [torch.empty_like(e) for e in empty])


@torch.inference_mode()
def step(family: Family, ids: torch.Tensor, cache: Cache) -> torch.Tensor:
    """Logits [R, vocabulary] after one more token a row, which the cache then holds."""
    place = cache.end
    hidden = family.embed(ids, _positions(cache, cache.length))
    mask = cache.own_mask
    mask = None if mask is None else mask.narrow(2, 0, place + 1)
    for layer in range(family.layers):
        if layer == cache.tap:
            cache.tapped = hidden
        q, k, v = family.project(layer, hidden)
        own = (cache.reply_keys[layer], cache.reply_values[layer])
        for kept, new in zip(own, (k, v), strict=True):
            kept.select(3, place).copy_(_by_prompt(new, cache))
        keys, values = (kept.narrow(3, 0, place + 1) for kept in own)
        attended = _attend(q.to(keys.dtype), cache, layer, keys, values, family.scaling, mask)
        hidden = family.finish(layer, hidden, attended.to(v.dtype))
    cache.length += 1
    return family.head(hidden)


def _positions(cache: Cache, at: int | torch.Tensor) -> torch.Tensor:
    """[R] of the tokens at this place of each reply."""
    positions = cache.prompt_lengths + at
    return positions if cache.replies == 1 else positions[:, None].expand(-1, cache.replies).reshape(-1)


def _by_prompt(states: torch.Tensor, cache: Cache) -> torch.Tensor:
    """[R, key heads, D] as [P, key heads, n, D]."""
    if cache.replies == 1:
        return states.unsqueeze(2)
    return states.unflatten(0, (-1, cache.replies)).transpose(1, 2)


@torch.inference_mode()
def static_step(family: Family, ids: torch.Tensor, at: torch.Tensor, cache: Cache) -> torch.Tensor:
    """The same at a place `at` [1] that is a tensor: no shape depends on it, so that a CUDA graph can be replayed.

    The cache must hold no garbage (`Cache.clear`): what lies behind `at` gets weight 0, and 0 times NaN is NaN.
    """
    room, place = cache.reply_keys[0].shape[3], at + cache.first
    hidden = family.embed(ids, _positions(cache, at))
    mask = torch.zeros(room, dtype=cache.reply_keys[0].dtype, device=at.device)
    mask.masked_fill_(torch.arange(room, device=at.device) > place, -torch.inf)
    mask = mask if cache.own_mask is None else cache.own_mask + mask
    for layer in range(family.layers):
        q, k, v = family.project(layer, hidden)
        own = (cache.reply_keys[layer], cache.reply_values[layer])
        for kept, new in zip(own, (k, v), strict=True):
            kept.index_copy_(3, place, _by_prompt(new.to(kept.dtype), cache)[:, :, :, None])
        attended = _attend(q.to(mask.dtype), cache, layer, *own, family.scaling, mask)
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
    queries: torch.Tensor, cache: Cache, layer: int, keys: torch.Tensor, values: torch.Tensor, scaling: float,
    mask: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """[R, heads * D]: each row's queries over its prompt and its own tokens.

    keys, values: [P, key heads, n, own, D]; mask: [own] or, of single replies, [P * key heads, 1, own], added to what
    a row makes of them.
    """
    if not cache.first:
        return _attend_shared(queries * scaling, cache, layer, keys, values, mask)
    prompts, key_heads, _, own, width = keys.shape
    together = queries.reshape(prompts * key_heads, -1, width)
    keys, values = (states.view(-1, own, width) for states in (keys, values))
    # no mask: what is added counts nothing
    added, beta = (queries.new_empty(1, 1, 1), 0) if mask is None else (mask, 1)
    weights = torch.baddbmm(added, together, keys.transpose(1, 2), beta=beta, alpha=scaling)
    return _weighted(torch.softmax(weights, -1), values).view(len(queries), -1)


def _weighted(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """[B, queries, D]: each row's values [B, T, D] by its weights [B, queries, T].

    On a CPU as the bags of an embedding: for a query or two a row that is three times as quick as a batched product (16
    to 256 rows of 4 heads and 150 tokens, EPYC 9004).
    """
    rows, tokens, width = values.shape
    if values.device.type != "cpu" or values.dtype != torch.float32 or values.stride(0) % width or weights.shape[1] > 2:
        return torch.bmm(weights, values)
    room = values.stride(0) // width
    table = values.as_strided(((rows - 1) * room + tokens, width), (width, 1))
    places, firsts = _bags(rows, weights.shape[1], room, tokens)
    found, *_ = torch.embedding_bag(table, places, firsts, mode=0, per_sample_weights=weights.reshape(-1))
    return found.view(rows, -1, width)


@functools.lru_cache(maxsize=2)
def _bags(rows: int, queries: int, room: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where each row's tokens stand, once a query, and where each bag begins: the same for all layers of a step."""
    begins = torch.arange(rows, dtype=torch.int32).mul_(room).repeat_interleave(queries)
    places = begins[:, None] + torch.arange(tokens, dtype=torch.int32)
    return places.flatten(), torch.arange(0, places.numel(), tokens, dtype=torch.int32)


def _attend_shared(
    queries: torch.Tensor, cache: Cache, layer: int, keys: torch.Tensor, values: torch.Tensor,
    mask: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """`_attend` over prompts that are read once for all their replies."""
    prompt_keys, prompt_values = cache.prompt_keys[layer], cache.prompt_values[layer]
    (prompts, key_heads, n, own, width), longest = keys.shape, prompt_keys.shape[1]
    group = queries.shape[1] // key_heads
    # queries of one prompt and key head together
    together = queries.reshape(prompts, n, key_heads, group, width).transpose(1, 2).reshape(-1, n * group, width)
    # a prompt's rows on the prompt, and each row on its own tokens; apart, since into a part of a larger tensor torch
    # multiplies matrix by matrix
    transposed = prompt_keys.transpose(1, 2)
    on_prompt = (
        torch.bmm(together, transposed) if cache.mask is None else torch.baddbmm(cache.mask, together, transposed)
    )
    on_own = torch.bmm(together.reshape(-1, group, width), keys.flatten(0, 2).transpose(1, 2))
    if mask is not None:
        on_own.add_(mask)
    weights = torch.cat((on_prompt, on_own.view(len(together), n * group, own)), -1)
    torch.softmax(weights, -1, out=weights)
    found = torch.bmm(weights[..., :longest], prompt_values).view(-1, group, width)
    found.add_(_weighted(weights[..., longest:].view(-1, n, group, own).flatten(0, 1), values.flatten(0, 2)))
    return found.view(prompts, key_heads, n, group * width).transpose(1, 2).reshape(len(queries), -1)
