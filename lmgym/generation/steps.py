"""A decoder's forward for many rows, one token a step: logits after each prompt, then after each new token.

Design decisions:
- A packed decoder uses our own caches: prompts of any lengths are one forward without padding, and n replies share
  their prompt's keys and values. Batches of replies that started at different times advance in one step: they share
  all but their attention, in which each has a cache of its own.
- Other decoders use transformers' cache. Their batches hold prompts of one length, so that nothing is padded and
  recurrent states are those of the prompt alone; one batch runs at a time.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from lmgym.errors import InputError
from lmgym.generation.cache import KEEP_SHARE, Cache, fill
from lmgym.generation.kept_turns import KeptTurns
from lmgym.generation.step_attention import JointAttention, StepAttention
from lmgym.models.forward.attention import KeyValues, RowAttention
from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.packed_rows import pack_last_tokens
from lmgym.models.forward.prefixes import Prefix

GRAPHED_SHARE = 0.5  # of rows that are open: with fewer the others leave, which needs a new graph
GRAPH_STEPS = 16  # fewer do not pay for a capture, which costs about three steps


class PackedSteps:
    """Steps of a packed decoder with our caches; on a GPU a CUDA graph, if enough steps are left to pay for it.

    A batch of P prompts with n replies each has up to P * n rows: those of ended replies leave.
    """

    def __init__(self, decoder: Decoder, room: int, known: Prefix | KeptTurns | None = None) -> None:
        """Replies have up to `room` tokens. Of prompts only the tokens that are not `known` yet are computed; a Prefix
        knows one prompt, so each batch has one.
        """
        self.decoder, self.room, self.known = decoder, room, known
        self.graphs = decoder.device.type == "cuda"
        self.caches: list[Cache] = []
        """one a batch, in the order of their starts"""
        self._graph: _Graph | None = None

    @property
    def tokens(self) -> int:
        """Tokens that the caches have room for."""
        return sum(cache.tokens for cache in self.caches)

    @torch.inference_mode()
    def start(self, prompts: Sequence[list[int]], n: int) -> torch.Tensor:
        """Logits [P, vocabulary] after each prompt of one more batch, with n replies to each."""
        if self.known is None:
            rows, record = pack_last_tokens(prompts).to(self.decoder.device), KeyValues()
            states = self.decoder.hidden(rows, RowAttention(rows, record=record))
        elif isinstance(self.known, KeptTurns):
            states, record = self.known.read(prompts)
        else:
            states = self.known.last_state(prompts[0])
            record = self.known.key_values()
        self.caches.append(fill(record, [len(prompt) for prompt in prompts], n, self.room))
        self._graph = None
        return self.decoder.logits(states)

    @torch.inference_mode()
    def advance(self, ids: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Logits [rows, vocabulary] of each batch after one more token of each of its rows, `ids` [rows] a batch.

        With a graph, the next call overwrites them.
        """
        joint, caches = torch.cat(list(ids)), self.caches
        left = self.room - max(cache.length for cache in caches)
        if self._graph is None and self.graphs and left >= GRAPH_STEPS:
            self._graph = _Graph(self.decoder, caches)
        if self._graph is not None:
            logits = self._graph.replay(joint)
        else:
            positions = torch.cat([cache.positions(cache.length) for cache in caches])
            states = self.decoder.run(joint, positions, _joint([StepAttention(cache) for cache in caches]))
            logits = self.decoder.logits(states)
        for cache in caches:
            cache.length += 1
        return logits.split([len(own) for own in ids])

    def drop(self, batch: int, is_open: np.ndarray) -> bool:
        """Let a batch's rows that are not open [rows] bool leave, if that pays; True if they left."""
        if is_open.all() or (self.graphs and np.count_nonzero(is_open) >= GRAPHED_SHARE * len(is_open)):
            return False
        self.caches[batch].end_replies(is_open)
        self._graph = None  # captured for another number of rows
        return True

    def end(self, batch: int) -> None:
        """Forget a batch. Later ones move up."""
        del self.caches[batch]
        self._graph = None


class PaddedSteps:
    """Steps with transformers' cache, whatever kind of states it holds: of one batch at a time."""

    tokens = 0  # of batches beside this one

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self._name = ""
        self._cache: Any = None

    @torch.inference_mode()
    def start(self, prompts: Sequence[list[int]], n: int) -> torch.Tensor:
        """Logits [P, vocabulary] after each prompt of the batch, with n replies to each; prompts have one length.

        Raises InputError for a model that returns no cache, such as RecurrentGemma.
        """
        ids = torch.tensor(prompts, device=self.decoder.device)
        output = self.decoder.model(input_ids=ids, use_cache=True)
        self._name, self._cache = self._cache_of(output)
        if n > 1:
            self._cache.reorder_cache(torch.arange(len(prompts), device=ids.device).repeat_interleave(n))
        return output.logits[:, -1]

    def _cache_of(self, output) -> tuple[str, Any]:
        names = ("past_key_values", "cache_params")
        name = next((name for name in names if getattr(output, name, None) is not None), None)
        if name is None:
            raise InputError(
                f"a {self.decoder.model.config.model_type} gives no cache of its states, so it cannot be sampled from; "
                "needed: another decoder (this one can be trained as a reward model)"
            )
        return name, getattr(output, name)

    @torch.inference_mode()
    def advance(self, ids: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Logits [rows, vocabulary] of the batch, as its only element, after one more token [rows]."""
        cache = {self._name: self._cache}
        return [self.decoder.model(input_ids=ids[0][:, None], use_cache=True, **cache).logits[:, -1]]

    def drop(self, batch: int, is_open: np.ndarray) -> bool:
        """Let the batch's rows that are not open [rows] bool leave, if they are many; True if they left."""
        if np.count_nonzero(is_open) >= KEEP_SHARE * len(is_open):
            return False
        self._cache.reorder_cache(torch.from_numpy(np.flatnonzero(is_open)).to(self.decoder.device))
        return True

    def end(self, batch: int) -> None:
        """Forget the batch."""
        self._cache = None


def _joint(parts: Sequence[StepAttention]) -> StepAttention | JointAttention:
    return parts[0] if len(parts) == 1 else JointAttention(parts)


@functools.cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """One stream for all captures: memory that a stream has freed is reused by that stream alone."""
    return torch.cuda.Stream(device)


class _Graph:
    """A step with these caches on a GPU, captured once and replayed: one launch instead of hundreds."""

    @torch.inference_mode()
    def __init__(self, decoder: Decoder, caches: Sequence[Cache]) -> None:
        device = decoder.device
        for cache in caches:
            cache.clear()
        self.ids = torch.zeros(sum(cache.rows for cache in caches), dtype=torch.int64, device=device)
        self.at = torch.tensor([cache.length for cache in caches], device=device)
        stream = _capture_stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            # one-time initialisation must not be captured; the first replay overwrites what these steps write
            for _ in range(2):
                static_step(decoder, self.ids, self.at, caches)
            # not torch.cuda.graph, which returns cached memory to the driver that the next updates need again
            self.graph.capture_begin()
            try:
                self.logits = static_step(decoder, self.ids, self.at, caches)
            finally:
                self.graph.capture_end()
        torch.cuda.current_stream(device).wait_stream(stream)

    def replay(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits [R, vocabulary] after the next tokens [R] of the rows, those of the first cache first."""
        self.ids.copy_(ids)
        self.graph.replay()
        self.at.add_(1)
        return self.logits


@torch.inference_mode()
def static_step(decoder: Decoder, ids: torch.Tensor, at: torch.Tensor, caches: Sequence[Cache]) -> torch.Tensor:
    """Logits [R, vocabulary] after tokens [R], those of each cache with its index `at` [caches] in their reply.

    No shape depends on the indices.
    """
    places = at.split(1)
    positions = torch.cat([cache.positions(place) for cache, place in zip(caches, places, strict=True)])
    parts = [StepAttention(cache, place) for cache, place in zip(caches, places, strict=True)]
    return decoder.logits(decoder.run(ids, positions, _joint(parts)))
