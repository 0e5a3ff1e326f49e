"""Keys and values of prompts and of the replies to them as these grow: what sampling keeps of a packed decoder."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from lmgym.models.forward.attention import KeyValues, LayerAttention, capped, softmax_with_sinks


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

    def positions(self, at: int | torch.Tensor) -> torch.Tensor:
        """[R] of the tokens at this place of each reply."""
        positions = self.prompt_lengths + at
        return positions if self.replies == 1 else positions[:, None].expand(-1, self.replies).reshape(-1)

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


def fill(of_prompts: KeyValues, lengths: list[int], n: int, room: int) -> Cache:
    """A cache for n replies of up to `room` tokens to each of P prompts, whose tokens lie end to end."""
    keys, values = of_prompts.keys, of_prompts.values
    device, counts = keys[0].device, torch.tensor(lengths)
    longest, places = max(lengths), torch.arange(max(lengths))
    filled = None
    if len(set(lengths)) > 1:
        here = places >= longest - counts[:, None] if n == 1 else places < counts[:, None]
        filled = here.flatten().nonzero()[:, 0].to(device)
    laid = [[_side_by_side(_wide(states), len(lengths), longest, filled) for states in part] for part in (keys, values)]
    mask = None
    if filled is not None:
        mask = torch.full((len(lengths) * longest,), -torch.inf, dtype=laid[0][0].dtype, device=device)
        mask = mask.index_fill_(0, filled, 0).view(len(lengths), -1)
        mask = F.pad(mask, (0, room)) if n == 1 else mask
        mask = mask.repeat_interleave(keys[0].shape[1], 0)[:, None]
    counts = counts.to(device)
    if n == 1:
        with_room = [[_with_room(states, room) for states in part] for part in laid]
        return Cache([], [], mask, counts, with_room[0], with_room[1], longest)
    shared = [[states.flatten(0, 1).contiguous() for states in part] for part in laid]
    empty = [states.new_empty(len(lengths), states.shape[1], n, room, states.shape[3]) for states in laid[0]]
    wide = [states.new_empty(len(lengths), states.shape[1], n, room, states.shape[3]) for states in laid[1]]
    return Cache(shared[0], shared[1], mask, counts, empty, wide)


def _wide(states: torch.Tensor) -> torch.Tensor:
    """On a CPU in fp32 also where states are bf16: there products in bf16 are compiled anew for every length."""
    return states.float() if states.device.type == "cpu" and states.dtype == torch.bfloat16 else states


def _side_by_side(states: torch.Tensor, rows: int, longest: int, filled: torch.Tensor | None) -> torch.Tensor:
    """[N, key heads, D] as [rows, key heads, longest, D]."""
    if filled is not None:
        spread = states.new_zeros(rows * longest, *states.shape[1:])
        states = spread.index_copy_(0, filled, states)
    return states.unflatten(0, (rows, longest)).transpose(1, 2)


def _with_room(states: torch.Tensor, room: int) -> torch.Tensor:
    """[P, key heads, T, D] as [P, key heads, 1, T + room, D]."""
    prompts, heads, longest, width = states.shape
    found = states.new_empty(prompts, heads, 1, longest + room, width)
    found[:, :, 0, :longest] = states
    return found


class StepAttention:
    """Attention of one more token a row over a cache, which takes in its keys and values; see `Attention`.

    With `at` [1], the place as a tensor, no shape depends on the place, so that a CUDA graph can be replayed; the cache
    must hold no garbage (`Cache.clear`): what lies behind `at` gets weight 0, and 0 times NaN is NaN.
    """

    def __init__(self, cache: Cache, at: torch.Tensor | None = None) -> None:
        self.cache, self.at = cache, at
        self.place: int | torch.Tensor = cache.end if at is None else at + cache.first
        self.own = cache.reply_keys[0].shape[3] if at is not None else cache.end + 1
        self._layer = 0
        self._masks: dict[int | None, tuple[torch.Tensor | None, torch.Tensor | None]] = {}

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: LayerAttention
    ) -> torch.Tensor:
        """[R, heads, D] of queries [R, heads, D], keys and values [R, key heads, D] of the new tokens."""
        cache, number = self.cache, self._layer
        self._layer += 1
        keys, values = (
            self._taken_in(kept[number], new)
            for kept, new in ((cache.reply_keys, key), (cache.reply_values, value))
        )  # fmt: skip
        if layer.window not in self._masks:
            self._masks[layer.window] = self._masks_of(layer.window)
        on_prompt, on_own = self._masks[layer.window]
        asking = query.to(keys.dtype)
        if cache.first:
            found = _attend_rows(asking, keys, values, layer, on_own)
        else:
            prompt = cache.prompt_keys[number], cache.prompt_values[number]
            found = _attend_shared(asking, prompt, keys, values, layer, on_prompt, on_own)
        return found.to(query.dtype)

    def _taken_in(self, kept: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """[P, key heads, n, own, D]: what there is of a layer once it holds the new token's [R, key heads, D]."""
        new = new.unflatten(0, (-1, self.cache.replies)).transpose(1, 2)
        if isinstance(self.place, torch.Tensor):
            kept.index_copy_(3, self.place, new.to(kept.dtype)[:, :, :, None])
            return kept
        kept.select(3, self.place).copy_(new)
        return kept.narrow(3, 0, self.own)

    def _masks_of(self, window: int | None) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Of prompts [P * key heads, 1, longest] and of replies [own] or [P * key heads, 1, own], to be added."""
        cache, device, dtype = self.cache, self.cache.reply_keys[0].device, self.cache.reply_keys[0].dtype
        static = isinstance(self.place, torch.Tensor)
        longest = cache.first or cache.prompt_keys[0].shape[1]
        if window is not None and not static and longest + cache.length < window:
            window = None  # all are within it
        on_own = None
        if static or window is not None:
            places = torch.arange(self.own, device=device)
            hidden = places > self.place
            if window is not None:
                hidden = hidden | (places <= self.place - window)
            on_own = torch.zeros(self.own, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)
        if cache.first:  # the mask of prompts is of the same places
            of_prompts = None if cache.mask is None else cache.mask.narrow(2, 0, self.own)
            return None, _sum(of_prompts, on_own)
        on_prompt = cache.mask
        if window is not None:
            heads = len(cache.prompt_keys[0]) // len(cache.prompt_lengths)
            length = cache.length if self.at is None else self.at
            first_seen = (cache.prompt_lengths + length - window + 1).repeat_interleave(heads)[:, None, None]
            before = torch.arange(longest, device=device) < first_seen
            out = torch.zeros(before.shape, dtype=dtype, device=device).masked_fill_(before, -torch.inf)
            on_prompt = _sum(on_prompt, out)
        return on_prompt, on_own


def _sum(one: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
    return other if one is None else one if other is None else one + other


def _attend_rows(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, layer: LayerAttention, mask: torch.Tensor | None
) -> torch.Tensor:
    """[R, heads, D]: each row's query over its prompt and its own tokens. keys, values: [R, key heads, 1, own, D]."""
    rows, key_heads, _, own, width = keys.shape
    together = queries.reshape(rows * key_heads, -1, width)
    scores = _scores(together, keys.view(-1, own, width), layer, mask)
    weights = _softmax(scores, layer, key_heads, 1)
    return torch.bmm(weights, values.view(-1, own, values.shape[-1])).view(rows, queries.shape[1], -1)


def _attend_shared(
    queries: torch.Tensor, prompt: tuple[torch.Tensor, torch.Tensor], keys: torch.Tensor, values: torch.Tensor,
    layer: LayerAttention, on_prompt: torch.Tensor | None, on_own: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """`_attend_rows` over prompts that are read once for all their replies; keys, values: [P, key heads, n, own, D]."""
    (prompts, key_heads, n, own, width), longest = keys.shape, prompt[0].shape[1]
    group = queries.shape[1] // key_heads
    # queries of one prompt and key head together
    together = queries.reshape(prompts, n, key_heads, group, width).transpose(1, 2).reshape(-1, n * group, width)
    # apart, since into a part of a larger tensor torch multiplies matrix by matrix
    of_prompt = _scores(together, prompt[0], layer, on_prompt)
    of_own = _scores(together.reshape(-1, group, width), keys.flatten(0, 2), layer, on_own)
    weights = _softmax(torch.cat((of_prompt, of_own.view(len(together), n * group, own)), -1), layer, key_heads, n)
    found = torch.bmm(weights[..., :longest], prompt[1]).view(prompts * key_heads * n, group, -1)
    found = found + torch.bmm(weights[..., longest:].reshape(-1, group, own), values.flatten(0, 2))
    return found.view(prompts, key_heads, n, group, -1).transpose(1, 2).reshape(len(queries), queries.shape[1], -1)


def _scores(
    queries: torch.Tensor, keys: torch.Tensor, layer: LayerAttention, mask: torch.Tensor | None
) -> torch.Tensor:
    """[B, Q, T] of queries [B, Q, D] and keys [B, T, D]."""
    scores = capped(torch.bmm(queries * layer.scaling, keys.transpose(1, 2)), layer.softcap)
    return scores if mask is None else scores.add_(mask)


def _softmax(scores: torch.Tensor, layer: LayerAttention, key_heads: int, n: int) -> torch.Tensor:
    """Over the last axis of scores [P * key heads, n * queries a key head, T], with the sinks of their heads."""
    if layer.sinks is None:
        return scores.softmax(-1)
    by_head = scores.unflatten(1, (n, -1)).unflatten(0, (-1, key_heads))
    return softmax_with_sinks(by_head, layer.sinks.view(key_heads, 1, -1, 1)).view(scores.shape)
