"""A decoder's forward for many rows, one token a step: logits after each prompt, then after each new token.

Design decisions:
- A packed decoder uses our own cache: all prompts of a batch, whatever their lengths, are one forward without padding,
  and n replies share their prompt's keys and values.
- Other decoders use transformers' cache. Their batches hold prompts of one length, so that nothing is padded and
  recurrent states are those of the prompt alone.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch

from lmgym.errors import InputError
from lmgym.generation.cache import Cache, fill
from lmgym.generation.step_attention import StepAttention
from lmgym.models.forward.attention import KeyValues, RowAttention
from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.packed_rows import pack_last_tokens
from lmgym.models.forward.prefixes import Prefix

KEEP_SHARE = 0.75  # ended rows are dropped once fewer than this share are open; dropping copies the cache
GRAPHED_KEEP_SHARE = 0.5  # lower, since a smaller batch needs a new graph
GRAPH_STEPS = 16  # fewer do not pay for a capture, which costs about three steps


class PackedSteps:
    """Steps of a packed decoder with our cache; on a GPU a CUDA graph, if enough steps are left to pay for it.

    There are R = P * n rows: n replies to each of P prompts.
    """

    def __init__(self, decoder: Decoder, cache: Cache, room: int) -> None:
        self.decoder, self.cache, self.room = decoder, cache, room
        self.graphs = decoder.device.type == "cuda"
        self.keep_share = GRAPHED_KEEP_SHARE if self.graphs else KEEP_SHARE
        self._graph: _Graph | None = None

    @property
    def replies(self) -> int:
        """n."""
        return self.cache.replies

    @torch.inference_mode()
    def advance(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits [R, vocabulary] after one more token [R] a row. With a graph, the next call overwrites them."""
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
        """Keep only these prompts and rows, in this order; each prompt has the same number of rows."""
        self._graph = None  # captured for another number of rows
        self.cache.keep(prompts, rows)


@torch.inference_mode()
def start_packed(
    decoder: Decoder, prompts: Sequence[list[int]], n: int, room: int, prefix: Prefix | None = None
) -> tuple[torch.Tensor, PackedSteps]:
    """Logits [P, vocabulary] after each prompt, and the steps of n replies of up to `room` tokens to each.

    With `prefix` there is a single prompt; only the tokens that the prefix does not hold yet are computed.
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
    """Steps with transformers' cache, whatever kind of states it holds."""

    keep_share = KEEP_SHARE

    def __init__(self, model, cache: Any, name: str, replies: int) -> None:
        self.model, self.cache, self.name, self.replies = model, cache, name, replies

    @torch.inference_mode()
    def advance(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits [R, vocabulary] after one more token [R] a row."""
        return self.model(input_ids=ids[:, None], use_cache=True, **{self.name: self.cache}).logits[:, -1]

    def keep(self, prompts: torch.Tensor, rows: torch.Tensor) -> None:
        """Keep only these prompts and rows, in this order; each prompt has the same number of rows."""
        self.cache.reorder_cache(rows)
        self.replies = len(rows) // len(prompts)


Steps = PackedSteps | PaddedSteps


@torch.inference_mode()
def start_padded(decoder: Decoder, prompts: Sequence[list[int]], n: int) -> tuple[torch.Tensor, PaddedSteps]:
    """Logits [P, vocabulary] after each prompt, and the steps of n replies to each; prompts have one length.

    Raises InputError for a model that returns no cache, such as RecurrentGemma.
    """
    ids = torch.tensor(prompts, device=decoder.device)
    output = decoder.model(input_ids=ids, use_cache=True)
    name = next((name for name in ("past_key_values", "cache_params") if getattr(output, name, None) is not None), None)
    if name is None:
        raise InputError(
            f"a {decoder.model.config.model_type} gives no cache of its states, so it cannot be sampled from; needed: "
            "another decoder (this one can be trained as a reward model)"
        )
    cache = getattr(output, name)
    if n > 1:
        cache.reorder_cache(torch.arange(len(prompts), device=ids.device).repeat_interleave(n))
    return output.logits[:, -1], PaddedSteps(decoder.model, cache, name, n)


@functools.cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """One stream for all captures: memory that a stream has freed is reused by that stream alone."""
    return torch.cuda.Stream(device)


class _Graph:
    """A step with one cache on a GPU, captured once and replayed: one launch instead of hundreds."""

    @torch.inference_mode()
    def __init__(self, decoder: Decoder, cache: Cache) -> None:
        device = decoder.device
        cache.clear()
        self.ids = torch.zeros(cache.rows, dtype=torch.int64, device=device)
        self.at = torch.full((1,), cache.length, dtype=torch.int64, device=device)
        stream = _capture_stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            # one-time initialisation must not be captured; the first replay overwrites what these steps write
            for _ in range(2):
                static_step(decoder, self.ids, self.at, cache)
            # not torch.cuda.graph, which returns cached memory to the driver that the next updates need again
            self.graph.capture_begin()
            try:
                self.logits = static_step(decoder, self.ids, self.at, cache)
            finally:
                self.graph.capture_end()
        torch.cuda.current_stream(device).wait_stream(stream)

    def replay(self, ids: torch.Tensor, index: int) -> torch.Tensor:
        """Logits [R, vocabulary] after tokens [R] with this index in their reply."""
        self.ids.copy_(ids)
        self.at.fill_(index)
        self.graph.replay()
        return self.logits


@torch.inference_mode()
def static_step(decoder: Decoder, ids: torch.Tensor, at: torch.Tensor, cache: Cache) -> torch.Tensor:
    """Logits [R, vocabulary] after tokens [R] with index `at` [1] in their reply; no shape depends on the index."""
    return decoder.logits(decoder.run(ids, cache.positions(at), StepAttention(cache, at)))
