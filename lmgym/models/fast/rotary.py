"""Angles of a rotary position embedding: computed once for every position, and looked up from then on."""

from typing import Any

import torch

MOVING = ("dynamic", "longrope")  # their frequencies follow the length of the text
ROOM_STEP = 1024  # positions: the table grows by this


class Angles:
    """Cosines and sines of a transformers rotary embedding (Su et al. 2021), laid out for heads [N, heads, D].

    A table on the CPU, where the module's own call took a tenth of a step of a small model; on a GPU, which would have
    to be asked how far positions reach, and where frequencies move, that call.
    """

    def __init__(self, rotary: Any) -> None:
        self.rotary = rotary
        self.moves = getattr(rotary, "rope_type", MOVING[0]) in MOVING
        self.tables: dict[torch.dtype, tuple[torch.Tensor, torch.Tensor]] = {}
        self.of: torch.Tensor | None = None

    def __call__(self, hidden: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[N, 1, D] each for positions [N] of hidden states of this type; the sines' first half is negative.

        So x cos + (x rolled by half a head) sin is the rotation: a roll instead of the usual halves put together.
        """
        if self.moves or positions.device.type != "cpu" or not len(positions):
            return self._of(hidden, positions)
        frequencies = self.rotary.inv_freq
        if self.of is not frequencies:
            self.tables, self.of = {}, frequencies
        longest = int(positions.max()) + 1
        table = self.tables.get(hidden.dtype)
        if table is None or len(table[0]) < longest:
            with torch.inference_mode(False):  # training reads it too
                known = torch.arange(-(-longest // ROOM_STEP) * ROOM_STEP, device="cpu")
                table = self.tables[hidden.dtype] = self._of(torch.empty(0, dtype=hidden.dtype, device="cpu"), known)
        cos, sin = table
        return cos.index_select(0, positions), sin.index_select(0, positions)

    @torch.no_grad()
    def _of(self, hidden: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = self.rotary(hidden[None], positions[None])
        half = cos.shape[-1] // 2
        return cos[0][:, None], torch.cat((-sin[0, :, :half], sin[0, :, half:]), -1)[:, None]
