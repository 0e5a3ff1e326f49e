"""Keys and values of a text's beginning, kept so that texts which share it compute only the rest.

Replies to a conversation share it at once, the turns of a conversation one after the other.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import final

import torch

from lmgym.data.batching import length_batches
from lmgym.models.forward.attention import KeyValues, RowAttention
from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.packed_rows import pack_last_tokens
from lmgym.text import common_prefix

BUFFER_STEP = 256  # tokens that the buffers grow by: a copy at every token would cost more than the token
TOKENS_AT_ONCE = 8192  # of suffixes


@final
class Prefix:
    """Keys and values of `ids`, discarded when a weight changes. Needs a packed decoder."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.ids: list[int] = []
        self.computed = 0
        """tokens, over all calls"""
        self._buffers = KeyValues()
        """longer than the ids"""
        self._weight_versions: list[tuple[int, int]] = []

    def forget(self) -> None:
        """Discard everything: for changes of weights that torch does not count as such."""
        self._weight_versions = []

    def key_values(self) -> KeyValues:
        """Keys and values of the ids, a layer [ids, key heads, D]."""
        end = len(self.ids)
        return KeyValues([keys[:end] for keys in self._buffers.keys], [values[:end] for values in self._buffers.values])

    @torch.inference_mode()
    def extend_to(self, ids: Sequence[int]) -> None:
        """Make `ids` the prefix. If interrupted, the prefix is what the old and the new ids share."""
        shared = self._cut_to_shared(ids, len(ids))
        if shared < len(ids):
            self._compute(list(ids), shared)

    @torch.inference_mode()
    def last_state(self, ids: Sequence[int]) -> torch.Tensor:
        """State [1, W], before the head, of the last of `ids`, which become the prefix as by `extend_to`."""
        return self._compute(list(ids), self._cut_to_shared(ids, len(ids) - 1))

    @torch.inference_mode()
    def suffix_states(self, suffixes: Sequence[Sequence[int]]) -> torch.Tensor:
        """States [n, W], before the head, of the last token of each suffix (at least one token) after the prefix."""
        batches = length_batches([len(suffix) for suffix in suffixes], TOKENS_AT_ONCE)
        states = torch.cat([self._forward([suffixes[i] for i in batch]) for batch in batches])
        order = torch.tensor([i for batch in batches for i in batch], device=states.device)
        return torch.empty_like(states).index_copy_(0, order, states)

    def _cut_to_shared(self, ids: Sequence[int], most: int) -> int:
        """Cut the prefix to what it shares with `ids`, at most so many tokens, and return their number."""
        versions = [(weight.data_ptr(), weight._version) for weight in self.decoder.model.parameters()]
        if versions != self._weight_versions:
            self.ids, self._weight_versions = [], versions
        shared = min(most, common_prefix([[*self.ids, -1], [*ids, -2]]))
        self.ids = self.ids[:shared]
        return shared

    def _compute(self, ids: list[int], start: int) -> torch.Tensor:
        record = KeyValues()
        state = self._forward([ids[start:]], record)
        for buffers, added in ((self._buffers.keys, record.keys), (self._buffers.values, record.values)):
            for layer, new in enumerate(added):
                buffer = buffers[layer] if layer < len(buffers) else new[:0]
                buffers[layer : layer + 1] = [_written(buffer, new, start)]
        self.computed += len(ids) - start
        self.ids = ids
        return state

    def _forward(self, suffixes: Sequence[Sequence[int]], record: KeyValues | None = None) -> torch.Tensor:
        """States [n, W] of the suffixes' last tokens."""
        rows = pack_last_tokens(suffixes)
        rows = replace(rows, positions=rows.positions + len(self.ids)).to(self.decoder.device)
        attention = RowAttention(rows, {-1: self.key_values()} if self.ids else None, record)
        return self.decoder.hidden(rows, attention)


def _written(buffer: torch.Tensor, new: torch.Tensor, start: int) -> torch.Tensor:
    """The buffer, or a larger copy of it, with `new` from row `start` on."""
    end = start + len(new)
    if end > len(buffer) or buffer.dtype != new.dtype or buffer.device != new.device:
        grown = new.new_empty(-(-end // BUFFER_STEP) * BUFFER_STEP, *new.shape[1:])
        grown[:start] = buffer[:start]
        buffer = grown
    buffer[start:end] = new
    return buffer
