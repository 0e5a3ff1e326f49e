"""Rows of tokens through a causal model without padding, read at chosen places; gradients flow, layer by layer.

Design decisions:
- Rows lie end to end, `[N, ...]`, in every linear layer; attention takes runs of rows of one length, as views: to
  gather and scatter rows for it cost as much as the attention itself. A GPU prefers few kernels: there rows of
  similar length are padded into a run.
- The last layer is finished only where its output is read: of a row with a prompt of 100 tokens and a reply of 50,
  a third of its work remains. What stands behind the last place that is read is left out.
- It may begin above the lowest layers, from their states: what is frozen is computed once (ppo/experience.py).
- The layers are those of lmgym/models/fast/families.py, called as modules, so ZeRO-3 and adapters work. No dropout.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from lmgym.engine import max_over_ranks
from lmgym.models.fast.families import Family, attention_dtype
from lmgym.models.fast.functions import CACHED_LOGITS, Spread, Taken, TargetLogprobs, head_logprobs
from lmgym.models.fast.joined import is_sharded

CHUNK_LOGITS = 1 << 26  # logits of so many numbers at once
FEWEST_ROWS, LEARNED_ROWS = 64, 256  # of a product by a large weight, and of one whose gradient it adds to
# a row shorter than this share of its run's longest starts another run; 1: nothing is padded
RUN_SHARE = 0.5 if torch.cuda.is_available() else 1.0


@dataclass(frozen=True)
class Run:
    """B rows that follow each other, of at most T tokens, of which the last Q are read, or fewer."""

    lengths: tuple[int, ...]
    """[B]: tokens of each row"""
    reads: tuple[int, ...]
    """[B]: how many of them are read, from the end"""
    slots: torch.Tensor | None = field(compare=False)
    """[tokens] int64: which of the B * T places side by side is whose; None where all rows are of one length"""
    read_slots: torch.Tensor | None = field(compare=False)
    """[sum(reads)] int64: the same of the B * Q"""

    @staticmethod
    def of(rows: Sequence[tuple[int, int]]) -> "Run":
        """Of rows as (tokens, how many of them are read)."""
        lengths, reads = (tuple(part) for part in zip(*rows, strict=True))
        return Run(lengths, reads, slots_of(lengths), slots_of(reads))

    def to(self, device) -> "Run":
        """The same on another device."""
        slots, reads = (
            part if part is None else part.to(device, non_blocking=True) for part in (self.slots, self.read_slots)
        )
        return replace(self, slots=slots, read_slots=reads)

    @property
    def tokens(self) -> int:
        """Of all rows."""
        return sum(self.lengths)


@dataclass(frozen=True)
class CausalRows:
    """A batch: N tokens of some rows, of which M are read."""

    ids: torch.Tensor
    """[N] int64"""
    positions: torch.Tensor
    """[N] int64"""
    places: torch.Tensor
    """[M] int64: which of the N are read, row after row"""
    runs: tuple[Run, ...]

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row; they add up to N."""
        return [length for run in self.runs for length in run.lengths]

    def to(self, device) -> "CausalRows":
        """The same on another device."""
        ids, positions, places = (
            part.to(device, non_blocking=True) for part in (self.ids, self.positions, self.places)
        )
        return CausalRows(ids, positions, places, tuple(run.to(device) for run in self.runs))


def lay(rows: Sequence[Sequence[int]], reads: Sequence[int], skip: int = 1) -> CausalRows:
    """Rows of ids as a batch that reads the `reads[i]` places of row i before its last `skip` tokens.

    With skip 1 these are the places whose next tokens are the row's last `reads[i]`; with 0 the last places themselves.
    The skipped tokens are left out: no place that is read sees them. Rows sorted by length make few runs.
    """
    lengths, counts = np.array([len(row) - skip for row in rows]), np.asarray(reads)
    ids = np.concatenate([np.asarray(row[: len(row) - skip], dtype=np.int64) for row in rows])
    positions = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    firsts = np.cumsum(lengths) - counts
    places = np.arange(counts.sum()) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)
    return CausalRows(
        torch.from_numpy(ids), torch.from_numpy(positions), torch.from_numpy(places), _runs(lengths, counts)
    )


def _runs(lengths: np.ndarray, reads: np.ndarray) -> tuple[Run, ...]:
    """Rows are cut into runs where one does not fit to the run's first: in its length, and on a CPU in what is read."""
    runs: list[list[tuple[int, int]]] = []
    for length, read in zip(lengths.tolist(), reads.tolist(), strict=True):
        first = runs[-1][0] if runs else (0, 0)
        fits = RUN_SHARE * first[0] <= length <= first[0] and (RUN_SHARE < 1 or read == first[1])
        if runs and fits:
            runs[-1].append((length, read))
        else:
            runs.append([(length, read)])
    return tuple(Run.of(run) for run in runs)


def slots_of(counts: Sequence[int], to_the_right: bool = False) -> torch.Tensor | None:
    """[sum(counts)]: rows of so many tokens, each filled up on the right to the longest; None where nothing is.

    With `to_the_right` they are filled up on the left.
    """
    if len(set(counts)) == 1:
        return None
    places, number = np.arange(max(counts)), np.asarray(counts)[:, None]
    return torch.from_numpy(np.flatnonzero(places >= max(counts) - number if to_the_right else places < number))


def run_layers(
    family: Family, batch: CausalRows, hidden: torch.Tensor | None = None, first: int = 0, last: int | None = None,
    recompute: bool = False,
) -> torch.Tensor:  # fmt: skip
    """States [N, W] after the layers `first` to `last` (without the last); with `last` None [M, W] of what is read.

    `hidden` are the states [N, W] before layer `first`; None embeds the ids. `recompute` keeps only the states between
    layers for the backward.
    """
    embedded = family.embed(batch.ids, batch.positions)  # also tells the layers the positions
    hidden = embedded if hidden is None else hidden
    end = family.layers if last is None else last
    for layer in range(first, end):
        read_only = last is None and layer == family.layers - 1
        if recompute and torch.is_grad_enabled():
            hidden = checkpoint(run_layer, family, batch, layer, hidden, read_only, use_reentrant=False)
        else:
            hidden = run_layer(family, batch, layer, hidden, read_only)
    return hidden


def run_layer(family: Family, batch: CausalRows, layer: int, hidden: torch.Tensor, read_only: bool) -> torch.Tensor:
    """States [N, W] after a layer, of those before it; with `read_only` [M, W] of what is read. Call `embed` before."""
    projected = family.project(layer, hidden, batch.places if read_only else None)
    attended = attend(batch, *projected, family.scaling, read_only)
    if read_only:
        hidden = Taken.apply(hidden, batch.places)
    return family.finish(layer, hidden, attended)


def attend(
    batch: CausalRows, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float, read_only: bool
) -> torch.Tensor:
    """[N, heads * D] of what `Family.project` gave of all tokens; with `read_only` [M, heads * D], queries are [M]."""
    working = values.dtype  # under autocast a rotation or a norm makes fp32 of queries and keys: values tell
    queries, keys, values = (states.to(attention_dtype(values)) for states in (queries, keys, values))
    tokens = [run.tokens for run in batch.runs]
    asking = [sum(run.reads) for run in batch.runs] if read_only else tokens
    # one split a tensor: its backward is one concatenation, that of a slice fills a whole tensor with zeros
    parts = zip(batch.runs, queries.split(asking), keys.split(tokens), values.split(tokens), strict=True)
    found = [_attend(run, q, k, v, scaling, read_only) for run, q, k, v in parts if len(q)]
    return (torch.cat(found) if found else queries.flatten(1)).to(working)


def _attend(run: Run, queries, keys, values, scaling: float, read_only: bool) -> torch.Tensor:
    """[tokens, heads * D] of a run's queries: those of all its tokens, or of what is read of them."""
    asking, slots = (run.reads, run.read_slots) if read_only else (run.lengths, run.slots)
    q = side_by_side(queries, asking, slots)
    k, v = (side_by_side(states, run.lengths, run.slots) for states in (keys, values))
    if k.shape[1] != q.shape[1]:
        k, v = (states.repeat_interleave(q.shape[1] // states.shape[1], dim=1) for states in (k, v))
    mask = _allowed(run, asking, q.device) if read_only else None
    with torch.autocast(q.device.type, enabled=False):  # it would round what is fp32
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=scaling)
    found = found.transpose(1, 2).flatten(0, 1)
    return (found if slots is None else Taken.apply(found, slots)).flatten(1)


def side_by_side(states: torch.Tensor, lengths: Sequence[int], slots: torch.Tensor | None) -> torch.Tensor:
    """[n, heads, D] end to end as [B, heads, T, D]: a view where rows are of one length, else 0 where there is none.

    `slots` are those of `slots_of(lengths)`, on the states' device.
    """
    if slots is not None:
        states = Spread.apply(states, slots, len(lengths) * max(lengths))
    return states.unflatten(0, (len(lengths), -1)).transpose(1, 2)


def _allowed(run: Run, asking: tuple[int, ...], device) -> torch.Tensor:
    """[B or 1, 1, Q, T] bool: what each query sees, where query j of a row is its (length - asking + j)th token."""
    found = [n - m for n, m in zip(run.lengths, asking, strict=True)]
    firsts = torch.tensor(found[:1] if len(set(found)) == 1 else found).to(device, non_blocking=True)
    rows = firsts[:, None] + torch.arange(max(asking), device=device)
    return (torch.arange(max(run.lengths), device=device) <= rows[..., None])[:, None]


def token_logprobs(
    family: Family, normed: torch.Tensor, targets: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """Log-probabilities [M] in fp32 of targets [M] from states [M, W] behind the last norm, at a temperature.

    In chunks: logits of a large vocabulary are held for few tokens at a time. For a head that learns they are kept
    until the backward, or computed again in it; for a frozen one what the backward needs of them is. Collective where
    the head is sharded: a chunk is a call of its module, for which all ranks gather it, so all make as many.
    """
    most, [head] = max(1, CHUNK_LOGITS // vocabulary_of(family)), family.output.layers
    sharded = is_sharded(head)
    if not len(targets) and not sharded:
        return normed.new_zeros(0, dtype=torch.float32) + 0 * normed.sum().float()
    learns = torch.is_grad_enabled() and any(p.requires_grad for p in head.parameters())
    on_cpu = normed.device.type == "cpu"
    if family.output.plain and not sharded and (on_cpu or not learns):
        in_cache = max(LEARNED_ROWS if learns else FEWEST_ROWS, CACHED_LOGITS // vocabulary_of(family))
        rows = min(most, in_cache) if on_cpu else most
        kept = most if learns else len(targets)

        def read(states: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
            return head_logprobs(states, head.weight, head.bias, wanted, temperature, rows)
    else:
        kept = most

        def read(states: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
            return _logprobs(family, states, wanted, temperature)

    number = max(1, -(-len(targets) // kept))
    if sharded:
        number = int(max_over_ranks(torch.tensor(number)))
    if number == 1:
        return read(normed, targets)
    pieces, again = [], torch.is_grad_enabled()
    for chunk, wanted in zip(_parts(normed, kept, number), _parts(targets, kept, number), strict=True):
        pieces.append(checkpoint(read, chunk, wanted, use_reentrant=False) if again else read(chunk, wanted))
    return torch.cat(pieces)


def _parts(states: torch.Tensor, size: int, number: int) -> list[torch.Tensor]:
    """So many of a size, the last ones empty where there are no more."""
    found = list(states.split(size))
    return found + [states[:0]] * (number - len(found))


def vocabulary_of(family: Family) -> int:
    """How many logits a token has."""
    [head] = family.output.layers
    return head.out_features


def _logprobs(family: Family, normed: torch.Tensor, targets: torch.Tensor, temperature: float) -> torch.Tensor:
    logits = family.logits(normed)
    if temperature not in (0, 1):
        logits = logits.float() / temperature
    return TargetLogprobs.apply(logits, targets)
