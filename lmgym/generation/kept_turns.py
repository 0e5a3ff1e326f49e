"""Keys and values of conversations, kept from turn to turn: a prompt that goes on from one computes only the rest."""

from collections.abc import Sequence
from dataclasses import replace
from typing import final

import numpy as np
import torch

from lmgym.models.forward.attention import KeyValues, RowAttention
from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.packed_rows import pack_last_tokens


@final
class KeptTurns:
    """Keys and values of the conversations that were kept last, `most_tokens` at most. The weights must stay the same.

    Nothing is kept of the first prompts: most tasks have one turn, and a later turn shows that they have several.
    """

    def __init__(self, decoder: Decoder, most_tokens: float) -> None:
        self.decoder, self.most_tokens = decoder, most_tokens
        self.computed = 0
        """tokens of prompts, over all calls"""
        self.turn = 0
        """calls of `begin_turn`"""
        self._kept: list[tuple[np.ndarray, KeyValues]] = []
        """ids, and their keys and values; those that were kept last are the last"""

    def begin_turn(self) -> None:
        """Call it before the prompts of each turn."""
        self.turn += 1

    @torch.inference_mode()
    def read(self, prompts: Sequence[list[int]]) -> tuple[torch.Tensor, KeyValues]:
        """States [P, W], before the head, of each prompt's last token; keys and values of all prompts, end to end."""
        found = [self._longest(np.array(prompt)) for prompt in prompts]
        suffixes = [prompt[shared:] for prompt, (shared, _) in zip(prompts, found, strict=True)]
        self.computed += sum(map(len, suffixes))
        rows, starts = pack_last_tokens(suffixes), torch.tensor([shared for shared, _ in found])
        # a kept conversation counts as a segment of its own, before all others
        before = {-2 - row: kept for row, (shared, kept) in enumerate(found) if shared}
        rows = replace(
            rows,
            positions=rows.positions + starts.repeat_interleave(torch.tensor(rows.lengths)),
            prefixes=tuple(-2 - row if -2 - row in before else -1 for row in range(len(prompts))),
        ).to(self.decoder.device)
        record = KeyValues()
        states = self.decoder.hidden(rows, RowAttention(rows, before, record))
        return states, KeyValues(*(self._whole(found, rows.lengths, record, part) for part in ("keys", "values")))

    def keep(self, ids: Sequence[int], key_values: KeyValues) -> None:
        """Keep a conversation's ids and their keys and values, a layer [ids, key heads, D]. From the second turn on."""
        if self.turn < 2:
            return
        whole = np.array(ids)
        self._kept = [one for one in self._kept if _shared(one[0], whole) < len(one[0])]
        self._kept.append((whole, key_values))
        tokens = sum(len(own) for own, _ in self._kept)
        while tokens > self.most_tokens:
            tokens -= len(self._kept.pop(0)[0])

    def _longest(self, prompt: np.ndarray) -> tuple[int, KeyValues]:
        """The most tokens that a kept conversation shares with a prompt, but for its last; their keys and values."""
        shared, kept = max(
            ((_shared(ids, prompt[:-1]), kept) for ids, kept in self._kept),
            key=lambda one: one[0],
            default=(0, KeyValues()),
        )
        return shared, KeyValues(*([states[:shared] for states in part] for part in (kept.keys, kept.values)))

    @staticmethod
    def _whole(
        found: Sequence[tuple[int, KeyValues]], lengths: Sequence[int], record: KeyValues, part: str
    ) -> list[torch.Tensor]:
        """A layer's keys or values of the prompts end to end, each the kept ones and then those of its suffix."""
        layers = []
        for layer, states in enumerate(getattr(record, part)):
            pieces = []
            for (shared, kept), own in zip(found, states.split(list(lengths)), strict=True):
                pieces += [getattr(kept, part)[layer].to(own.dtype), own] if shared else [own]
            layers.append(torch.cat(pieces))
        return layers


def _shared(some: np.ndarray, other: np.ndarray) -> int:
    """The number of tokens that both begin with."""
    length = min(len(some), len(other))
    differs = some[:length] != other[:length]
    return int(differs.argmax()) if differs.any() else length
