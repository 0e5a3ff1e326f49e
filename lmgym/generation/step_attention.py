"""Attention of one new token a row over the cache of its prompt and reply."""

from collections.abc import Sequence

import torch

from lmgym.generation.cache import Cache
from lmgym.models.layer_attention import LayerAttention, capped, softmax_with_sinks


class StepAttention:
    """Attention of one new token a row over a cache, to which it adds the token's keys and values; see `Attention`.

    With `at` [1], the token's index in its reply as a tensor, no shape depends on the index, so that a CUDA graph can
    be replayed. The cache must then hold no garbage (`Cache.clear`): what follows `at` gets weight 0, and 0 times NaN
    is NaN.
    """

    def __init__(self, cache: Cache, at: torch.Tensor | None = None) -> None:
        self.cache, self.at = cache, at
        self.index: int | torch.Tensor = cache.end if at is None else cache.first + at
        self.width = cache.end + 1 if at is None else cache.reply_keys[0].shape[3]  # of `reply_*` that is attended to
        self._layer = 0
        self._masks: dict[int | None, tuple[torch.Tensor | None, torch.Tensor | None]] = {}

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: LayerAttention
    ) -> torch.Tensor:
        """[R, heads, D] of queries [R, heads, D], keys and values [R, key heads, D] of the new tokens."""
        cache, number = self.cache, self._layer
        self._layer += 1
        if cache.growing is not None:
            query, key, value = (self._in_places(states, cache.growing) for states in (query, key, value))
        keys = self._append(cache.reply_keys[number], key)
        values = self._append(cache.reply_values[number], value)
        if layer.window not in self._masks:
            self._masks[layer.window] = self._make_masks(layer.window)
        prompt_mask, reply_mask = self._masks[layer.window]
        queries = query.to(keys.dtype)
        if cache.first:
            attended = _attend_rows(queries, keys, values, layer, reply_mask)
        else:
            prompt = cache.prompt_keys[number], cache.prompt_values[number]
            attended = _attend_shared(queries, prompt, keys, values, layer, prompt_mask, reply_mask)
        return (attended if cache.growing is None else attended[cache.growing]).to(query.dtype)

    def _in_places(self, states: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """[P * n, ...] of [R, ...], 0 for replies that have ended."""
        return states.new_zeros(self.cache.places, *states.shape[1:]).index_copy_(0, places, states)

    def _append(self, states: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """[P, key heads, n, width, D]: a layer's states, which now hold the new token's [R, key heads, D]."""
        new = new.unflatten(0, (-1, self.cache.replies)).transpose(1, 2)
        if isinstance(self.index, torch.Tensor):
            states.index_copy_(3, self.index, new.to(states.dtype)[:, :, :, None])
            return states
        states.select(3, self.index).copy_(new)
        return states.narrow(3, 0, self.width)

    def _make_masks(self, window: int | None) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Masks to add to scores: of prompts [P * key heads, 1, longest], of replies [width] or [.., 1, width].

        With a single reply the second is of prompt and reply together, and the first is None.
        """
        cache = self.cache
        longest = cache.first or cache.prompt_keys[0].shape[1]
        if self.at is None and window is not None and longest + cache.length < window:
            window = None  # it covers everything
        reply_mask = self._reply_mask(window)
        if cache.first:
            padding = None if cache.mask is None else cache.mask.narrow(2, 0, self.width)
            return None, _sum(padding, reply_mask)
        if window is None:
            return cache.mask, reply_mask
        key_heads = len(cache.prompt_keys[0]) // len(cache.prompt_lengths)
        index = cache.length if self.at is None else self.at
        window_start = (cache.prompt_lengths + index - window + 1).repeat_interleave(key_heads)[:, None, None]
        columns = torch.arange(longest, device=window_start.device)
        return _sum(cache.mask, self._hide(columns < window_start)), reply_mask

    def _reply_mask(self, window: int | None) -> torch.Tensor | None:
        if self.at is None and window is None:
            return None
        columns = torch.arange(self.width, device=self.cache.prompt_lengths.device)
        hidden = columns > self.index
        if window is not None:
            hidden = hidden | (columns <= self.index - window)
        return self._hide(hidden)

    def _hide(self, hidden: torch.Tensor) -> torch.Tensor:
        """Minus infinity where `hidden`, else 0."""
        zeros = torch.zeros(hidden.shape, dtype=self.cache.reply_keys[0].dtype, device=hidden.device)
        return zeros.masked_fill_(hidden, -torch.inf)


class JointAttention:
    """Attention of one new token a row over several caches, whose rows lie end to end."""

    def __init__(self, parts: Sequence[StepAttention]) -> None:
        self.parts, self.rows = parts, [part.cache.rows for part in parts]

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: LayerAttention
    ) -> torch.Tensor:
        """See `StepAttention`."""
        queries, keys, values = (states.split(self.rows) for states in (query, key, value))
        own = zip(self.parts, queries, keys, values, strict=True)
        return torch.cat([part(query, key, value, layer) for part, query, key, value in own])


def _sum(mask: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
    return other if mask is None else mask if other is None else mask + other


def _attend_rows(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, layer: LayerAttention, mask: torch.Tensor | None
) -> torch.Tensor:
    """[R, heads, D]: each row's query over its prompt and reply. keys, values: [R, key heads, 1, width, D]."""
    rows, key_heads, _, width, size = keys.shape
    by_head = queries.reshape(rows * key_heads, -1, size)
    scores = _scores(by_head, keys.view(-1, width, size), layer, mask)
    weights = _softmax(scores, layer, key_heads, 1)
    return torch.bmm(weights, values.view(-1, width, values.shape[-1])).view(rows, queries.shape[1], -1)


def _attend_shared(
    queries: torch.Tensor,
    prompt: tuple[torch.Tensor, torch.Tensor],
    keys: torch.Tensor,
    values: torch.Tensor,
    layer: LayerAttention,
    prompt_mask: torch.Tensor | None,
    reply_mask: torch.Tensor | None,
) -> torch.Tensor:
    """`_attend_rows` with prompts that are read once for all their replies; keys, values: [P, key heads, n, width, D].

    The two products are concatenated: into a slice of a larger tensor, torch would multiply matrix by matrix.
    """
    (prompts, key_heads, n, width, size), longest = keys.shape, prompt[0].shape[1]
    group = queries.shape[1] // key_heads
    # queries of one prompt and key head together
    by_head = queries.reshape(prompts, n, key_heads, group, size).transpose(1, 2).reshape(-1, n * group, size)
    prompt_scores = _scores(by_head, prompt[0], layer, prompt_mask)
    reply_scores = _scores(by_head.reshape(-1, group, size), keys.flatten(0, 2), layer, reply_mask)
    scores = torch.cat((prompt_scores, reply_scores.view(len(by_head), n * group, width)), -1)
    weights = _softmax(scores, layer, key_heads, n)
    attended = torch.bmm(weights[..., :longest], prompt[1]).view(prompts * key_heads * n, group, -1)
    attended = attended + torch.bmm(weights[..., longest:].reshape(-1, group, width), values.flatten(0, 2))
    return attended.view(prompts, key_heads, n, group, -1).transpose(1, 2).reshape(len(queries), queries.shape[1], -1)


def _scores(
    queries: torch.Tensor, keys: torch.Tensor, layer: LayerAttention, mask: torch.Tensor | None
) -> torch.Tensor:
    """[B, Q, T] of queries [B, Q, D] and keys [B, T, D]."""
    scores = capped(torch.bmm(queries * layer.scaling, keys.transpose(1, 2)), layer.softcap)
    return scores if mask is None else scores.add_(mask)


def _softmax(scores: torch.Tensor, layer: LayerAttention, key_heads: int, n: int) -> torch.Tensor:
    """Softmax over T of scores [P * key heads, n * queries a key head, T], with the sinks of their heads."""
    if layer.sinks is None:
        return scores.softmax(-1)
    by_head = scores.unflatten(1, (n, -1)).unflatten(0, (-1, key_heads))
    return softmax_with_sinks(by_head, layer.sinks.view(key_heads, 1, -1, 1)).view(scores.shape)
