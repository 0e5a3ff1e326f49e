"""States that sampling computes on its way, kept for those who would compute them again: what is frozen runs once."""

from collections.abc import Sequence

import numpy as np
import torch


class KeptStates:
    """States [tokens, W] before a layer, of all rows that were sampled, by the row's ids: prompt and reply.

    The last token of a reply has none: nothing was sampled after it. Once `most` numbers are kept, no more are.
    """

    def __init__(self, layer: int, most: float) -> None:
        self.layer, self.most = layer, most
        self.numbers = 0
        self._prompts: torch.Tensor | None = None
        self._replies = torch.empty(0)
        self._found: dict[bytes, tuple[torch.Tensor, torch.Tensor]] = {}

    def begin(self, prompts: torch.Tensor, rows: int, room: int) -> None:
        """A batch of so many replies of up to `room` tokens; the states of all prompts, end to end, are [N, W]."""
        numbers = prompts.numel() + rows * (room - 1) * prompts.shape[1]
        self._prompts = prompts if self.numbers + numbers <= self.most else None
        if self._prompts is not None:
            self.numbers += numbers
            self._replies = prompts.new_empty(rows, room - 1, prompts.shape[1])

    def add(self, rows: torch.Tensor, position: int, states: torch.Tensor) -> None:
        """Those [R, W] of the tokens at a position of these replies [R]."""
        if self._prompts is not None:
            self._replies[rows, position] = states

    def end(self, prompts: Sequence[list[int]], n: int, replies: Sequence[Sequence[int]]) -> None:
        """The batch is done: n replies to each prompt."""
        if self._prompts is None:
            return
        ends = np.cumsum([len(prompt) for prompt in prompts])
        for row, reply in enumerate(replies):
            prompt, end = prompts[row // n], ends[row // n]
            own = self._prompts[end - len(prompt) : end]
            self._found[_key([*prompt, *reply])] = own, self._replies[row, : len(reply) - 1]
        self._prompts = None

    def of(self, rows: Sequence[Sequence[int]]) -> torch.Tensor | None:
        """Those of rows of ids but for their last tokens, end to end, [N, W]; None where one of them was not kept.

        To be called outside of inference mode: what it returns may be kept for a backward.
        """
        found = [self._found.get(_key(row)) for row in rows]
        parts = [part for pair in found if pair is not None for part in pair]
        return None if None in found or not parts else torch.cat(parts)

    def forget(self) -> None:
        """All of them."""
        self.numbers, self._replies = 0, torch.empty(0)
        self._found.clear()


def _key(ids: Sequence[int]) -> bytes:
    return np.asarray(ids, dtype=np.int64).tobytes()
