"""Any decoder of transformers through its own modules: packed rows in, states and logits at chosen places out.

Design decisions:
- Rows run packed (attention.py) where the model bears it (anatomy.py), and padded elsewhere, through one interface.
- A forward may begin above the lowest layers, from their states, or end below the upper ones: the layers that do not
  run pass on what they are given. So what is frozen is computed once, whatever the family.
- Logits are those of the model's own forward, with its scales and caps, of given states.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lmgym.errors import InputError
from lmgym.models.forward.anatomy import Anatomy, at_places, examine, forwards, logits_of, states_of
from lmgym.models.forward.attention import Attention, RowAttention, again_in_backward
from lmgym.models.forward.packed_rows import PackedRows
from lmgym.models.heads import head_name


@final
class Decoder:
    """A causal model or a classifier, below any adapter. N tokens, of which M are read; W numbers a state."""

    def __init__(self, model, anatomy: Anatomy | None = None) -> None:
        self.model = model
        self.anatomy = examine(model) if anatomy is None else anatomy
        self.trunk: nn.Module = model.get_submodule(self.anatomy.trunk)
        """everything below the head"""
        self.blocks: nn.ModuleList = model.get_submodule(self.anatomy.blocks)
        """the layers"""

    @property
    def packed(self) -> bool:
        """Rows run without padding."""
        return not self.anatomy.padded_because

    @property
    def note(self) -> str:
        """A line on why rows are padded; empty where they are not."""
        because = self.anatomy.padded_because
        return f"rows of this {self.model.config.model_type} are padded: {because}" if because else ""

    @property
    def device(self) -> torch.device:
        """Of the weights."""
        return next(self.model.parameters()).device

    def hidden(
        self, rows: PackedRows, attention: Attention | None = None, states: torch.Tensor | None = None, first: int = 0,
        recompute: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        """States [M, W] behind the last norm at the places that are read.

        `states` [N, W] are those of all tokens before layer `first`: the layers below do not run. `recompute` keeps
        only the states between layers for the backward; otherwise what follows the last layer's attention runs where
        states are read alone. Raises ValueError for `attention` where rows are padded.
        """
        # what is computed again in the backward must be what it was
        recompute = recompute and torch.is_grad_enabled()
        again = recompute or getattr(self.blocks[-1], "gradient_checkpointing", False)
        ends_early = self.packed and attention is None and not again
        attention = self._attention(rows, attention, len(self.blocks) - first if ends_early else 0)
        padded = None if self.packed else _Padded.of(rows)
        blocks, replaced = self.blocks, {}
        for block in blocks[:first]:
            replaced[block] = self._passing(None)
        if first:
            assert states is not None
            replaced[blocks[first - 1]] = self._passing(states if padded is None else padded.side_by_side(states))
        if recompute:
            replaced |= {block: _checkpointed(block) for block in blocks[first:]}
        if ends_early and len(rows.places):
            replaced |= at_places(self.model, self.anatomy.after_attention, rows.places)
        found = self._run(rows, attention, padded, replaced)
        return found.index_select(0, rows.places)

    def run(self, ids: torch.Tensor, positions: torch.Tensor, attention: Attention) -> torch.Tensor:
        """States [N, W] behind the last norm of ids [N] at positions [N]. For a packed decoder."""
        return states_of(self.model, self.trunk, ids, positions, attention)

    @torch.no_grad()
    def below(self, rows: PackedRows, layers: int) -> torch.Tensor:
        """States [N, W] of all tokens after so many of the lowest layers, 1 or more."""
        padded, kept = None if self.packed else _Padded.of(rows), []
        blocks = self.blocks
        last, forward = blocks[layers - 1], blocks[layers - 1].forward

        def recorded(*args, **kwargs):
            out = forward(*args, **kwargs)
            kept.append(out if isinstance(out, torch.Tensor) else out[0])
            return out

        replaced: dict[nn.Module, Callable] = {block: self._passing(None) for block in blocks[layers:]}
        self._run(rows, self._attention(rows, None, 0), padded, replaced | {last: recorded})
        return kept[0][0] if padded is None else padded.end_to_end(kept[0])

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """[M, vocabulary] of a causal model, from what `hidden` gave."""
        return logits_of(self.model, self.trunk, self.anatomy.output, states)

    def scores(self, states: torch.Tensor) -> torch.Tensor:
        """[M, labels] of a classifier, from what `hidden` gave."""
        return getattr(self.model, head_name(self.model))(states)

    def _attention(self, rows: PackedRows, attention: Attention | None, layers: int) -> Attention | None:
        if self.packed:
            return RowAttention(rows, layers=layers) if attention is None else attention
        if attention is not None:
            raise ValueError("a decoder whose rows are padded takes no attention of ours")
        return None

    def _run(self, rows: PackedRows, attention: Attention | None, padded: "_Padded | None", replaced) -> torch.Tensor:
        """[N, W] behind the last norm."""
        with forwards(replaced):
            if attention is not None:
                return self.run(rows.ids, rows.positions, attention)
            assert padded is not None
            found = self.trunk(input_ids=padded.ids, attention_mask=padded.mask, use_cache=False).last_hidden_state
            return padded.end_to_end(found)

    def _passing(self, states: torch.Tensor | None) -> Callable:
        """The forward of a layer that does not run: it gives what it is given, or these states."""
        outputs = self.anatomy.block_outputs
        given = states if states is None or states.ndim == 3 else states[None]

        def forward(hidden_states, *args, **kwargs) -> Any:
            out = hidden_states if given is None else given
            return (out, *[None] * (outputs - 1)) if outputs else out

        return forward


def decoder_of(model, packed: bool | None = None) -> Decoder:
    """The decoder of a causal model or a classifier; `packed` False pads its rows.

    Raises InputError where it is True and rows cannot be packed.
    """
    decoder = Decoder(model)
    if packed and not decoder.packed:
        raise InputError(
            f"--packed: rows of a {model.config.model_type} cannot be packed: {decoder.anatomy.padded_because}; "
            "leave --packed out"
        )
    if packed is False:
        return Decoder(model, replace(decoder.anatomy, padded_because="--packed false"))
    return decoder


def _checkpointed(block: nn.Module) -> Callable:
    forward = block.forward

    def again(*args, **kwargs):
        return checkpoint(forward, *args, use_reentrant=False, context_fn=again_in_backward, **kwargs)

    return again


@dataclass(frozen=True)
class _Padded:
    """The rows side by side, B rows of up to T tokens, padded on the right."""

    ids: torch.Tensor
    """[B, T] int64"""
    mask: torch.Tensor
    """[B, T] int64: 1 for tokens"""
    source: torch.Tensor
    """[B, T] int64: which of the N tokens; a shared prefix stands in several rows"""
    slots: torch.Tensor
    """[N] int64: where each token stands among the B * T"""

    @staticmethod
    def of(rows: PackedRows) -> "_Padded":
        continued = set(rows.prefixes)
        whole = [span for segment, span in enumerate(rows.spans()) if segment not in continued]
        longest = max(map(len, whole))
        mask = np.arange(longest) < np.array([len(span) for span in whole])[:, None]
        source = np.zeros(mask.shape, dtype=np.int64)
        source[mask] = np.concatenate(whole)
        slots = np.empty(len(rows.ids), dtype=np.int64)
        # backwards: of the rows that share a token the first counts
        order = np.flatnonzero(mask.ravel())[::-1]
        slots[source.ravel()[order]] = order
        device = rows.ids.device
        places, kept, back = (torch.from_numpy(part).to(device) for part in (source, mask.astype(np.int64), slots))
        return _Padded(rows.ids[places] * kept, kept, places, back)

    def side_by_side(self, states: torch.Tensor) -> torch.Tensor:
        """[N, W] as [B, T, W]."""
        return states[self.source]

    def end_to_end(self, states: torch.Tensor) -> torch.Tensor:
        """[B, T, W] as [N, W]."""
        return states.flatten(0, 1).index_select(0, self.slots)
