"""A text's beginning, computed once: its keys and values stay, and the next texts take what they share.

Replies to a conversation share it at once, the turns of a conversation one after the other; `reach` keeps what the old
and the new ids have in common and computes the rest.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import final

import torch

from lmgym.data.batching import length_batches
from lmgym.models.forward.attention import KeyValues, RowAttention
from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.packed_rows import pack_replies, pack_rows
from lmgym.text import Replies, common_prefix

ROOM_STEP = 256  # the room of keys and values grows by this: a copy at every token would cost more than the token
TOKENS_AT_ONCE = 8192  # of suffixes


@final
class Prefix:
    """Keys and values of the `ids` at hand. Changed weights make it forget them. Needs a packed decoder."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.ids: list[int] = []
        self.computed = 0  # tokens, of all calls
        self._room = KeyValues()
        """a layer [room, key heads, D]"""
        self._of: list[tuple[int, int]] = []

    def forget(self) -> None:
        """For changes of weights that leave no trace."""
        self._of = []

    def kept(self) -> KeyValues:
        """Of the ids, a layer [ids, key heads, D]."""
        end = len(self.ids)
        return KeyValues(*([layer[:end] for layer in part] for part in (self._room.keys, self._room.values)))

    @torch.inference_mode()
    def reach(self, ids: Sequence[int], last: bool = False) -> torch.Tensor | None:
        """Holds exactly these ids from here on; with `last` the state [1, W] of the last one, before the head.

        Interrupted on the way it holds what it held in common with them.
        """
        ids = list(ids)
        now = versions(self.decoder.model.parameters())
        if now != self._of:
            self.ids, self._of = [], now
        shared = common_prefix([[*self.ids, -1], [*ids, -2]])
        if last:
            shared = min(shared, len(ids) - 1)
        self.ids = self.ids[:shared]
        if shared == len(ids):
            return None
        rows, record = pack_rows([ids[shared:]], [1], skip=0), KeyValues()
        rows = replace(rows, positions=rows.positions + shared).to(self.decoder.device)
        states = self.decoder.hidden(rows, RowAttention(rows, self.kept() if shared else None, record))
        for part, new in ((self._room.keys, record.keys), (self._room.values, record.values)):
            for layer, found in enumerate(new):
                self._store(part, layer, found, shared)
        self.computed += len(ids) - shared
        self.ids = ids
        return states if last else None

    @staticmethod
    def _store(kept: list[torch.Tensor], layer: int, new: torch.Tensor, start: int) -> None:
        end = start + len(new)
        if layer == len(kept):
            kept.append(new.new_empty(0, *new.shape[1:]))
        if end > len(kept[layer]) or kept[layer].dtype != new.dtype or kept[layer].device != new.device:
            grown = new.new_empty(-(-end // ROOM_STEP) * ROOM_STEP, *new.shape[1:])
            grown[:start] = kept[layer][:start]
            kept[layer] = grown
        kept[layer][start:end] = new

    @torch.inference_mode()
    def suffixes(self, suffixes: Sequence[Sequence[int]]) -> torch.Tensor:
        """States [n, W], before the head, of the last token of each suffix (one token at least) behind the ids."""
        batches = length_batches([len(suffix) for suffix in suffixes], TOKENS_AT_ONCE)
        found = torch.cat([self._ends([list(suffixes[i]) for i in batch]) for batch in batches])
        order = torch.tensor([i for batch in batches for i in batch], device=found.device)
        return torch.empty_like(found).index_copy_(0, order, found)

    def _ends(self, suffixes: list[list[int]]) -> torch.Tensor:
        rows = pack_replies([Replies([], suffixes)])
        rows = replace(rows, positions=rows.positions + len(self.ids)).to(self.decoder.device)
        return self.decoder.hidden(rows, RowAttention(rows, self.kept() if self.ids else None))


def versions(weights: Iterable[torch.Tensor]) -> list[tuple[int, int]]:
    """Another list once a weight has changed in place, or is another."""
    return [(weight.data_ptr(), weight._version) for weight in weights]
