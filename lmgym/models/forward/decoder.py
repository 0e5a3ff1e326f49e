"""Any decoder of transformers through its own modules: packed rows in, states and logits at chosen places out.

Design decisions:
- Rows run packed (attention.py) where the model supports it (structure.py), else padded, through one interface.
- A forward may start above the lowest layers, from their states, or stop below the upper ones: the layers that do not
  run pass on their input. So frozen layers are computed once, whatever the family.
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
from lmgym.models.classifiers import head_name
from lmgym.models.forward.attention import Attention, RowAttention, checkpoint_contexts
from lmgym.models.forward.packed_rows import PackedRows
from lmgym.models.forward.structure import (
    DecoderStructure,
    forwards_at,
    inspect_decoder,
    logits_of,
    packed_states,
    replaced_forwards,
)


@final
class Decoder:
    """A causal model or a classifier, below any adapter. N tokens, of which M are read; states of width W."""

    def __init__(self, model, structure: DecoderStructure | None = None) -> None:
        self.model = model
        self.structure = inspect_decoder(model) if structure is None else structure
        self.trunk: nn.Module = model.get_submodule(self.structure.trunk)
        """everything below the head"""
        self.blocks: nn.ModuleList = model.get_submodule(self.structure.blocks)
        """the layers"""

    @property
    def packed(self) -> bool:
        """True if rows run without padding."""
        return not self.structure.padded_because

    @property
    def note(self) -> str:
        """A line with the reason that rows are padded; empty if they are not."""
        because = self.structure.padded_because
        return f"rows of this {self.model.config.model_type} are padded: {because}" if because else ""

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.model.parameters()).device

    def hidden(
        self,
        rows: PackedRows,
        attention: Attention | None = None,
        states: torch.Tensor | None = None,
        first: int = 0,
        recompute: bool = False,
    ) -> torch.Tensor:
        """States [M, W] after the last norm at the places that are read.

        `states` [N, W] are those of all tokens before layer `first`; the layers below it do not run. With `recompute`
        only the states between layers are kept for the backward. Otherwise the last layer computes everything after
        its attention only where states are read. Raises ValueError for `attention` if rows are padded.
        """
        recompute = recompute and torch.is_grad_enabled()
        # with checkpoints the last layer runs in full: it is recomputed after `replaced_forwards` has ended
        checkpointed = recompute or getattr(self.blocks[-1], "gradient_checkpointing", False)
        last_only_read = self.packed and attention is None and not checkpointed
        batch = self._batch(rows, attention, len(self.blocks) - first if last_only_read else 0)
        forwards = dict.fromkeys(self.blocks[:first], self._passing_on(None))
        if first:
            assert states is not None
            forwards[self.blocks[first - 1]] = self._passing_on(batch.from_tokens(states))
        if recompute:
            forwards |= {block: _checkpointed(block) for block in self.blocks[first:]}
        if last_only_read and len(rows.places):
            forwards |= forwards_at(self.model, self.structure.after_attention, rows.places)
        with replaced_forwards(forwards):
            return batch.states(self).index_select(0, rows.places)

    def run(self, ids: torch.Tensor, positions: torch.Tensor, attention: Attention) -> torch.Tensor:
        """States [N, W] after the last norm of ids [N] at positions [N]. For a packed decoder."""
        return packed_states(self.model, self.trunk, ids, positions, attention)

    @torch.no_grad()
    def hidden_after(self, rows: PackedRows, layers: int) -> torch.Tensor:
        """States [N, W] of all tokens after the lowest `layers` layers, at least 1."""
        batch, recorded = self._batch(rows), []
        last = self.blocks[layers - 1]
        forward = last.forward

        def record(*args, **kwargs):
            output = forward(*args, **kwargs)
            recorded.append(output if isinstance(output, torch.Tensor) else output[0])
            return output

        with replaced_forwards({last: record, **dict.fromkeys(self.blocks[layers:], self._passing_on(None))}):
            batch.states(self)
        return batch.to_tokens(recorded[0])

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """[M, vocabulary] of a causal model, from states that `hidden` returned."""
        return logits_of(self.model, self.trunk, self.structure.output, states)

    def scores(self, states: torch.Tensor) -> torch.Tensor:
        """[M, labels] of a classifier, from states that `hidden` returned."""
        return getattr(self.model, head_name(self.model))(states)

    def _batch(
        self, rows: PackedRows, attention: Attention | None = None, num_layers: int = 0
    ) -> "_PackedBatch | _PaddedBatch":
        if self.packed:
            return _PackedBatch(rows, attention or RowAttention(rows, num_layers=num_layers))
        if attention is not None:
            raise ValueError("a decoder whose rows are padded takes no attention of ours")
        return _PaddedBatch.of(rows)

    def _passing_on(self, states: torch.Tensor | None) -> Callable:
        """The forward of a layer that does not run: it returns `states`, or its input."""
        outputs = self.structure.block_outputs

        def forward(hidden_states, *args, **kwargs) -> Any:
            passed = hidden_states if states is None else states
            return (passed, *[None] * (outputs - 1)) if outputs else passed

        return forward


def decoder_of(model, packed: bool | None = None) -> Decoder:
    """The decoder of a causal model or a classifier; `packed=False` pads its rows.

    Raises InputError if `packed` is True and rows cannot be packed.
    """
    decoder = Decoder(model)
    if packed and not decoder.packed:
        raise InputError(
            f"--packed: rows of a {model.config.model_type} cannot be packed: {decoder.structure.padded_because}; "
            "leave --packed out"
        )
    if packed is False:
        return Decoder(model, replace(decoder.structure, padded_because="--packed false"))
    return decoder


def _checkpointed(block: nn.Module) -> Callable:
    forward = block.forward

    def recomputed(*args, **kwargs):
        return checkpoint(forward, *args, use_reentrant=False, context_fn=checkpoint_contexts, **kwargs)

    return recomputed


@dataclass(frozen=True)
class _PackedBatch:
    """The rows as one row of N tokens."""

    rows: PackedRows
    attention: Attention

    def states(self, decoder: Decoder) -> torch.Tensor:
        """[N, W] after the last norm."""
        return decoder.run(self.rows.ids, self.rows.positions, self.attention)

    def from_tokens(self, states: torch.Tensor) -> torch.Tensor:
        """[N, W] as [1, N, W]."""
        return states[None]

    def to_tokens(self, states: torch.Tensor) -> torch.Tensor:
        """[1, N, W] as [N, W]."""
        return states[0]


@dataclass(frozen=True)
class _PaddedBatch:
    """The rows as B rows of up to T tokens, padded on the right."""

    ids: torch.Tensor
    """[B, T] int64"""
    mask: torch.Tensor
    """[B, T] int64: 1 for tokens"""
    source: torch.Tensor
    """[B, T] int64: index among the N tokens; a shared prefix is in several rows"""
    slots: torch.Tensor
    """[N] int64: index of each token among the B * T"""

    @staticmethod
    def of(rows: PackedRows) -> "_PaddedBatch":
        continued = set(rows.prefixes)
        whole = [span for segment, span in enumerate(rows.spans()) if segment not in continued]
        mask = np.arange(max(map(len, whole))) < np.array([len(span) for span in whole])[:, None]
        source = np.zeros(mask.shape, dtype=np.int64)
        source[mask] = np.concatenate(whole)
        slots = np.empty(len(rows.ids), dtype=np.int64)
        # backwards: of the rows that share a token, the first one counts
        order = np.flatnonzero(mask.ravel())[::-1]
        slots[source.ravel()[order]] = order
        device = rows.ids.device
        indices, kept, back = (torch.from_numpy(part).to(device) for part in (source, mask.astype(np.int64), slots))
        return _PaddedBatch(rows.ids[indices] * kept, kept, indices, back)

    def states(self, decoder: Decoder) -> torch.Tensor:
        """[N, W] after the last norm."""
        output = decoder.trunk(input_ids=self.ids, attention_mask=self.mask, use_cache=False)
        return self.to_tokens(output.last_hidden_state)

    def from_tokens(self, states: torch.Tensor) -> torch.Tensor:
        """[N, W] as [B, T, W]."""
        return states[self.source]

    def to_tokens(self, states: torch.Tensor) -> torch.Tensor:
        """[B, T, W] as [N, W]."""
        return states.flatten(0, 1).index_select(0, self.slots)
