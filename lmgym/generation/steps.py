"""A decoder's forward a token at a time, for many rows at once: prompts in, logits after each new token out.

Design decisions:
- A packed decoder attends over a cache of ours: all prompts of a batch are one forward without padding, whatever their
  lengths, and n replies share their prompt's keys and values.
- Other decoders go over transformers' own cache. Their batches hold prompts of one length: nothing is padded, so
  recurrent states are those of the prompt alone.
"""

import functools
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from lmgym.errors import InputError
from lmgym.generation.cache import Cache, StepAttention, fill
from lmgym.models.forward.attention import KeyValues, RowAttention
from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.packed_rows import pack_last_tokens
from lmgym.models.forward.prefixes import Prefix

KEEP_SHARE = 0.75
GRAPHED_KEEP_SHARE = 0.5  # a smaller batch needs another graph
GRAPH_STEPS = 16  # a capture costs about three steps


class Steps(Protocol):
    """R = P * n rows under way."""

    keep_share: float
    """the batch is cut down once fewer of its rows than this are open: copying the caches costs too"""

    @property
    def replies(self) -> int:
        """n, to each prompt."""
        ...

    def advance(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits [R, vocabulary] after one more token [R] a row."""
        ...

    def keep(self, prompts: torch.Tensor, rows: torch.Tensor) -> None:
        """Only these prompts and rows, in this order; each prompt with as many rows."""
        ...


class PackedSteps:
    """Steps of a packed decoder over a cache of ours; on a GPU a captured graph, where enough of them are left."""

    def __init__(self, decoder: Decoder, cache: Cache, room: int) -> None:
        self.decoder, self.cache, self.room = decoder, cache, room
        self.graphs = decoder.device.type == "cuda"
        self.keep_share = GRAPHED_KEEP_SHARE if self.graphs else KEEP_SHARE
        self._graph: _Graph | None = None

    @property
    def replies(self) -> int:
        """n, to each prompt."""
        return self.cache.replies

    @torch.inference_mode()
    def advance(self, ids: torch.Tensor) -> torch.Tensor:
        """See `Steps`. What a graph gives is overwritten by the next call."""
        cache = self.cache
        if self._graph is None and self.graphs and self.room - cache.length >= GRAPH_STEPS:
            self._graph = _Graph(self.decoder, cache)
        if self._graph is not None:
            logits = self._graph.replay(ids, cache.length)
        else:
            states = self.decoder.run(ids, cache.positions(cache.length), StepAttention(cache))
            logits = self.decoder.logits(states)
        cache.length += 1
        return logits

    def keep(self, prompts: torch.Tensor, rows: torch.Tensor) -> None:
        """See `Steps`."""
        self._graph = None  # it is of so many rows
        self.cache.keep(prompts, rows)


@torch.inference_mode()
def start_packed(
    decoder: Decoder, prompts: Sequence[list[int]], n: int, room: int, prefix: Prefix | None = None
) -> tuple[torch.Tensor, PackedSteps]:
    """Logits [P, vocabulary] after each prompt, and the steps of n replies of up to `room` tokens to each.

    With `prefix` there is one prompt, of which what the prefix does not hold yet is computed.
    """
    if prefix is None:
        rows, record = pack_last_tokens(prompts).to(decoder.device), KeyValues()
        states = decoder.hidden(rows, RowAttention(rows, record=record))
    else:
        states = prefix.last_state(prompts[0])
        record = prefix.key_values()
    cache = fill(record, [len(prompt) for prompt in prompts], n, room)
    return decoder.logits(states), PackedSteps(decoder, cache, room)


class PaddedSteps:
    """Steps over transformers' cache, whatever kind of states it holds."""

    keep_share = KEEP_SHARE

    def __init__(self, model, cache: Any, name: str, replies: int) -> None:
        self.model, self.cache, self.name, self.replies = model, cache, name, replies

    @torch.inference_mode()
    def advance(self, ids: torch.Tensor) -> torch.Tensor:
        """See `Steps`."""
        return self.model(input_ids=ids[:, None], use_cache=True, **{self.name: self.cache}).logits[:, -1]

    def keep(self, prompts: torch.Tensor, rows: torch.Tensor) -> None:
        """See `Steps`."""
        self.cache.reorder_cache(rows)
        self.replies = len(rows) // len(prompts)


@torch.inference_mode()
def start_padded(decoder: Decoder, prompts: Sequence[list[int]], n: int) -> tuple[torch.Tensor, PaddedSteps]:
    """Logits [P, vocabulary] after each prompt, and the steps of n replies to each; prompts are of one length.

    Raises InputError for a model that gives no cache, such as RecurrentGemma.
    """
    ids = torch.tensor(prompts, device=decoder.device)
    found = decoder.model(input_ids=ids, use_cache=True)
    name = next((name for name in ("past_key_values", "cache_params") if getattr(found, name, None) is not None), None)
    if name is None:
        raise InputError(
            f"a {decoder.model.config.model_type} gives no cache of its states, so it cannot be sampled from; needed: "
            "another decoder (reward models train with this one)"
        )
    cache = getattr(found, name)
    if n > 1:
        cache.reorder_cache(torch.arange(len(prompts), device=ids.device).repeat_interleave(n))
    return found.logits[:, -1], PaddedSteps(decoder.model, cache, name, n)


@functools.cache
def _stream_aside(device: torch.device) -> torch.cuda.Stream:
    """One for all captures: what a stream has freed serves that stream alone."""
    return torch.cuda.Stream(device)


class _Graph:
    """A step over one cache on a GPU, captured once and replayed: one launch instead of hundreds."""

    @torch.inference_mode()
    def __init__(self, decoder: Decoder, cache: Cache) -> None:
        device = decoder.device
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
                static_step(decoder, self.ids, self.at, cache)
            # not by torch.cuda.graph: it hands cached memory back to the driver, of which the next updates ask again
            self.graph.capture_begin()
            try:
                self.logits = static_step(decoder, self.ids, self.at, cache)
            finally:
                self.graph.capture_end()
        torch.cuda.current_stream(device).wait_stream(aside)

    def replay(self, ids: torch.Tensor, place: int) -> torch.Tensor:
        """Logits [R, vocabulary] after tokens [R] at a place of each reply."""
        self.ids.copy_(ids)
        self.at.fill_(place)
        self.graph.replay()
        return self.logits


@torch.inference_mode()
def static_step(decoder: Decoder, ids: torch.Tensor, at: torch.Tensor, cache: Cache) -> torch.Tensor:
    """Logits [R, vocabulary] after tokens [R] at place `at` [1] of each reply; no shape depends on the place."""
    return decoder.logits(decoder.run(ids, cache.positions(at), StepAttention(cache, at)))
