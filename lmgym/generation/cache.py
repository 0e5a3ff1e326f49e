"""Keys and values of prompts and of their growing replies, as sampling from a packed decoder keeps them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from lmgym.models.forward.attention import KeyValues

KEEP_SHARE = 0.75  # ended rows lose their place once fewer than this share are left; that copies the cache


@dataclass
class Cache:
    """Keys and values of P prompts and of n growing replies to each: P * n places, of which R still grow.

    With several replies to a prompt, `prompt_keys` and `prompt_values` are lists over layers of
    [P * key heads, longest, D], padded on the right; `reply_keys` and `reply_values` are lists of
    [P, key heads, n, room, D], so that all replies of a prompt and key head are one matrix.

    A single reply shares a row with its prompt, so that attention is one product instead of two: `prompt_*` are empty,
    and `reply_*` begin with the prompts, padded on the left, which end at `first`.
    """

    prompt_keys: list[torch.Tensor]
    prompt_values: list[torch.Tensor]
    mask: torch.Tensor | None
    """[P * key heads, 1, longest], or with a single reply [.., first + room]: 0 at tokens, minus infinity at padding;
    None if all prompts have the same length"""
    prompt_lengths: torch.Tensor
    reply_keys: list[torch.Tensor]
    reply_values: list[torch.Tensor]
    first: int = 0
    length: int = 0
    """tokens of each reply so far"""
    growing: torch.Tensor | None = None
    """[R] places of the replies that grow, in rising order; None: all"""

    @property
    def replies(self) -> int:
        """n."""
        return self.reply_keys[0].shape[2]

    @property
    def places(self) -> int:
        """P * n."""
        return len(self.prompt_lengths) * self.replies

    @property
    def rows(self) -> int:
        """R."""
        return self.places if self.growing is None else len(self.growing)

    @property
    def tokens(self) -> int:
        """Tokens that there is room for, of prompts and replies."""
        prompts = 0 if self.first else len(self.prompt_lengths) * self.prompt_keys[0].shape[1]
        return prompts + self.places * self.reply_keys[0].shape[3]

    @property
    def end(self) -> int:
        """Index of the next token in `reply_*`."""
        return self.first + self.length

    def positions(self, index: int | torch.Tensor) -> torch.Tensor:
        """[R] positions in the text of the tokens with this index in their reply."""
        positions = self.prompt_lengths + index
        positions = positions if self.replies == 1 else positions[:, None].expand(-1, self.replies).reshape(-1)
        return positions if self.growing is None else positions[self.growing]

    @torch.inference_mode()
    def clear(self) -> None:
        """Set the room for tokens to come to 0."""
        for states in (*self.reply_keys, *self.reply_values):
            states[..., self.end :, :] = 0

    @torch.inference_mode()
    def read(self, row: int) -> KeyValues:
        """Keys and values of a row that grows, a layer [tokens of its prompt and reply, key heads, D]; copies."""
        place = row if self.growing is None else int(self.growing[row])
        prompt, reply = divmod(place, self.replies)
        return KeyValues(
            self._read(prompt, reply, self.prompt_keys, self.reply_keys),
            self._read(prompt, reply, self.prompt_values, self.reply_values),
        )

    def _read(
        self, prompt: int, reply: int, prompts: list[torch.Tensor], replies: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        length = int(self.prompt_lengths[prompt])
        if self.first:
            start = self.first - length
            return [states[prompt, :, 0, start : self.end].transpose(0, 1).clone() for states in replies]
        found = []
        for before, states in zip(prompts, replies, strict=True):
            own = states[prompt, :, reply, : self.length]
            shared = before.unflatten(0, (-1, len(own)))[prompt, :, :length]
            found.append(torch.cat((shared, own), 1).transpose(0, 1))
        return found

    @torch.inference_mode()
    def end_replies(self, is_open: np.ndarray) -> None:
        """Only these [R] bool of the replies that grow go on. The others lose their places if they are many."""
        device = self.prompt_lengths.device
        grows = np.zeros(self.places, dtype=bool)
        grows[np.flatnonzero(is_open) if self.growing is None else self.growing.cpu().numpy()[is_open]] = True
        by_prompt = grows.reshape(-1, self.replies)
        counts = by_prompt.sum(1)
        prompts = np.flatnonzero(counts)
        # every prompt keeps as many places as the one with most growing replies: theirs first, then ended ones
        replies = np.argsort(~by_prompt[prompts], axis=1, kind="stable")[:, : int(counts.max())]
        kept = (prompts[:, None] * self.replies + replies).ravel()
        if len(kept) <= KEEP_SHARE * self.places:
            self._keep(torch.from_numpy(prompts).to(device), torch.from_numpy(kept).to(device))
            grows = grows[kept]
        self.growing = None if grows.all() else torch.from_numpy(np.flatnonzero(grows)).to(device)

    def _keep(self, prompts: torch.Tensor, places: torch.Tensor) -> None:
        """Keep only these prompts and places, in this order; each prompt has the same number of places."""
        if self.first:
            self._keep_single_replies(prompts)
        else:
            self._keep_shared_prompts(prompts, places)

    def _keep_single_replies(self, prompts: torch.Tensor) -> None:
        self._keep_masks(prompts)
        padding = self.first - int(self.prompt_lengths.max())  # columns that only longer prompts used
        self.first -= padding
        for part in (self.reply_keys, self.reply_values):
            part[:] = [states.index_select(0, prompts)[..., padding:, :] for states in part]
        self.mask = None if self.mask is None else self.mask[..., padding:]

    def _keep_shared_prompts(self, prompts: torch.Tensor, places: torch.Tensor) -> None:
        for part in (self.reply_keys, self.reply_values):
            for layer, states in enumerate(part):
                kept = states.transpose(1, 2).flatten(0, 1)[places].unflatten(0, (len(prompts), -1))
                part[layer] = kept.transpose(1, 2).contiguous()
        before = len(self.prompt_lengths)
        if len(prompts) == before:
            return
        self._keep_masks(prompts)
        longest = int(self.prompt_lengths.max())
        for part in (self.prompt_keys, self.prompt_values):
            part[:] = [states.unflatten(0, (before, -1))[prompts][:, :, :longest].flatten(0, 1) for states in part]
        self.mask = None if self.mask is None else self.mask[..., :longest]

    def _keep_masks(self, prompts: torch.Tensor) -> None:
        if self.mask is not None:
            self.mask = self.mask.unflatten(0, (len(self.prompt_lengths), -1))[prompts].flatten(0, 1)
        self.prompt_lengths = self.prompt_lengths[prompts]


def fill(prompts: KeyValues, lengths: list[int], n: int, room: int) -> Cache:
    """A cache for n replies of up to `room` tokens to each of P prompts, whose tokens lie end to end in `prompts`.

    Empties `prompts` layer by layer, so that no more than one layer exists twice.
    """
    counts, longest = torch.tensor(lengths), max(lengths)
    device, key_heads = prompts.keys[0].device, prompts.keys[0].shape[1]
    columns = torch.arange(longest)
    is_token = columns >= longest - counts[:, None] if n == 1 else columns < counts[:, None]
    filled = None if is_token.all() else is_token.flatten().nonzero()[:, 0].to(device)

    def moved(layers: list[torch.Tensor]) -> Iterator[torch.Tensor]:
        while layers:
            states = _padded(_computed(layers.pop(0)), len(lengths), longest, filled)
            yield _with_room(states, room) if n == 1 else states.flatten(0, 1).contiguous()

    keys, values = (list(moved(part)) for part in (prompts.keys, prompts.values))
    mask = None
    if filled is not None:
        mask = torch.zeros(is_token.shape, dtype=keys[0].dtype).masked_fill_(~is_token, -torch.inf).to(device)
        mask = F.pad(mask, (0, room)) if n == 1 else mask
        mask = mask.repeat_interleave(key_heads, 0)[:, None]
    counts = counts.to(device)
    if n == 1:
        return Cache([], [], mask, counts, keys, values, longest)
    empty_keys, empty_values = (
        [states.new_empty(len(lengths), key_heads, n, room, states.shape[-1]) for states in part]
        for part in (keys, values)
    )
    return Cache(keys, values, mask, counts, empty_keys, empty_values)


def _computed(states: torch.Tensor) -> torch.Tensor:
    """The states in the dtype of attention: fp32 on a CPU, where products in bf16 are compiled for every length."""
    return states.float() if states.device.type == "cpu" and states.dtype == torch.bfloat16 else states


def _padded(states: torch.Tensor, prompts: int, longest: int, filled: torch.Tensor | None) -> torch.Tensor:
    """[P, key heads, longest, D] of [N, key heads, D], whose tokens go to the places `filled` of P * longest."""
    if filled is not None:
        padded = states.new_zeros(prompts * longest, *states.shape[1:])
        states = padded.index_copy_(0, filled, states)
    return states.unflatten(0, (prompts, longest)).transpose(1, 2)


def _with_room(states: torch.Tensor, room: int) -> torch.Tensor:
    """[P, key heads, T, D] as [P, key heads, 1, T + room, D]."""
    prompts, heads, longest, width = states.shape
    extended = states.new_empty(prompts, heads, 1, longest + room, width)
    extended[:, :, 0, :longest] = states
    return extended
