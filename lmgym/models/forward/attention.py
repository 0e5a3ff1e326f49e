"""Attention of packed rows: one function, registered with transformers, that any decoder calls in every layer.

Design decisions:
- What the rows are is passed in a ContextVar: some families drop the keyword arguments that they do not know.
- The attention of a forward is an object that is called once a layer, in order: it knows which tokens see which, and
  whether keys and values are kept (generation) or taken from what was kept (a shared beginning).
- On a CPU each segment is one call of torch's fused attention, in fp32: its backward in bf16 takes twice as long. On a
  GPU the whole batch is one call of torch's flash attention for rows of different lengths; no mask of all tokens by all
  tokens exists anywhere.
"""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface

from lmgym.models.forward.packed_rows import PackedRows, Varlen

NAME = "lmgym_packed"


@dataclass(frozen=True)
class LayerAttention:
    """A layer's way of attending, beyond what is causal."""

    scaling: float
    window: int | None = None
    """a token sees itself and the window - 1 before it; None: all before it"""
    softcap: float | None = None
    """scores s become softcap * tanh(s / softcap) (Gemma 2)"""
    sinks: torch.Tensor | None = None
    """[heads]: a score more in each softmax, which no value belongs to (GPT-OSS)"""
    dropout: float = 0.0


class Attention(Protocol):
    """Attention of one forward, which calls it once a layer, in order."""

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: LayerAttention
    ) -> torch.Tensor:
        """[N, heads, D] of queries [N, heads, D], keys and values [N, key heads, D] of all tokens."""
        ...


_current: ContextVar[tuple[object, Attention] | None] = ContextVar("attention", default=None)


@contextlib.contextmanager
def attending(config, attention: Attention) -> Iterator[None]:
    """A forward of the model with this config runs packed for the length of a `with`; otherwise it is as it was."""
    token = _current.set((config, attention))
    try:
        with implementation(config, NAME):
            yield
    finally:
        _current.reset(token)


@contextlib.contextmanager
def implementation(config, name: str) -> Iterator[None]:
    """Another attention implementation of transformers for the model with this config, for the length of a `with`."""
    before = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before


def again_in_backward() -> tuple[contextlib.AbstractContextManager, contextlib.AbstractContextManager]:
    """For `context_fn` of torch's checkpoint: what is computed again in the backward attends as in the forward."""
    current = _current.get()
    return contextlib.nullcontext(), contextlib.nullcontext() if current is None else attending(*current)


def _of_transformers(
    module, query, key, value, attention_mask, scaling=None, dropout=0.0, sliding_window=None, softcap=None, s_aux=None,
    **_,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """transformers' interface: [1, heads, N, D] to [1, N, heads, D]."""
    current = _current.get()
    if current is None:
        raise ValueError(f"attention {NAME!r} is for packed rows alone; else set_attn_implementation('sdpa')")
    how = LayerAttention(
        query.shape[-1] ** -0.5 if scaling is None else scaling, sliding_window, softcap, s_aux, dropout
    )
    note = _noting.get()
    if note is not None:
        note.append((module, how))
    # under autocast a rotation or a norm makes fp32 of queries and keys: the values tell the working type
    query, key, value = (states[0].transpose(0, 1).to(value.dtype) for states in (query, key, value))
    return current[1](query, key, value, how)[None], None


_noting: ContextVar[list | None] = ContextVar("noting", default=None)


@contextlib.contextmanager
def noting() -> Iterator[list[tuple[torch.nn.Module, LayerAttention]]]:
    """The modules that attend through us, and how, for the length of a `with`."""
    found: list[tuple[torch.nn.Module, LayerAttention]] = []
    token = _noting.set(found)
    try:
        yield found
    finally:
        _noting.reset(token)


AttentionInterface.register(NAME, _of_transformers)


@dataclass
class KeyValues:
    """Keys and values of N tokens, a layer [N, key heads, D] each."""

    keys: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)


class RowAttention:
    """Attention within packed rows.

    `kept` are keys and values of tokens before all rows, which every segment sees first; positions must go on from
    them. With `record` the keys and values of the rows are added to it. The last of so many `layers`, where it is said
    how many there are, attends from the places that are read alone, and gives 0 at the others.
    """

    def __init__(
        self, rows: PackedRows, kept: KeyValues | None = None, record: KeyValues | None = None, layers: int = 0
    ) -> None:
        self.rows, self.kept, self.record, self.layers = rows, kept, record, layers
        self._runs = _runs(rows.lengths, rows.prefixes)
        self._layer = 0

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: LayerAttention
    ) -> torch.Tensor:
        """See `Attention`."""
        if self.record is not None:
            self.record.keys.append(key)
            self.record.values.append(value)
        before = None
        if self.kept is not None:
            before = (self.kept.keys[self._layer], self.kept.values[self._layer])
        self._layer += 1
        varlen = self.rows.varlen
        by_kernel = query.is_cuda and query.dtype in (torch.float16, torch.bfloat16) and layer.dropout == 0
        if varlen and by_kernel and before is None and layer.softcap is None and layer.sinks is None:
            return _by_varlen(query, key, value, layer, varlen)
        if self._layer == self.layers and self.rows.reads is not None and len(self.rows.places):
            asking = query.index_select(0, self.rows.places)
            found = self._by_segments(asking, key, value, layer, before, self.rows.reads)
            return found.new_zeros(len(query), *found.shape[1:]).index_copy(0, self.rows.places, found)
        return self._by_segments(query, key, value, layer, before, None)

    def _by_segments(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: LayerAttention, before, reads
    ) -> torch.Tensor:
        dtype = query.dtype
        if query.device.type == "cpu" and dtype == torch.bfloat16:
            query, key, value = query.float(), key.float(), value.float()
        tokens = [run.count * run.length for run in self._runs]
        asking = tokens if reads is None else [sum(reads[r.first : r.first + r.count]) for r in self._runs]
        # one split a tensor: its backward is one concatenation, that of a slice fills a whole tensor with zeros
        parts = list(zip(query.split(asking), key.split(tokens), value.split(tokens), strict=True))
        keys_of: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # of segments that others continue
        found = []
        for run, (q, k, v) in zip(self._runs, parts, strict=True):
            k, v = (states.unflatten(0, (run.count, run.length)) for states in (k, v))
            front = keys_of[run.prefix] if run.prefix >= 0 else before
            if front is not None:
                k, v = (
                    torch.cat((own.to(new).expand(run.count, *own.shape), new), 1)
                    for own, new in zip(front, (k, v), strict=True)
                )
            if run.continued:
                keys_of[run.first] = (k[0], v[0])
            counts = [run.length] * run.count if reads is None else reads[run.first : run.first + run.count]
            found += _ask(q, k, v, layer, counts)
        return torch.cat(found).to(dtype)


def _ask(q, k, v, layer: LayerAttention, counts: Sequence[int]) -> list[torch.Tensor]:
    """[n, heads, D] of a run's queries; `counts` are those of each of its segments, whose keys are k [B, T, ...]."""
    if len(set(counts)) == 1:
        return [attend(q.unflatten(0, (len(counts), -1)), k, v, layer).flatten(0, 1)] if len(q) else []
    own = zip(q.split(counts), k.split(1), v.split(1), strict=True)
    return [attend(one[None], keys, values, layer)[0] for one, keys, values in own if len(one)]


@dataclass(frozen=True)
class _Run:
    """Neighbouring segments of one length which continue the same one, or none: one call."""

    first: int
    count: int
    length: int
    prefix: int
    continued: bool


def _runs(lengths: Sequence[int], prefixes: Sequence[int]) -> list[_Run]:
    continued = set(prefixes)
    found: list[_Run] = []
    for segment, (length, prefix) in enumerate(zip(lengths, prefixes, strict=True)):
        last = found[-1] if found else None
        whole = segment in continued
        if last and (last.length, last.prefix) == (length, prefix) and not whole and not last.continued:
            found[-1] = _Run(last.first, last.count + 1, length, prefix, False)
        else:
            found.append(_Run(segment, 1, length, prefix, whole))
    return found


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: LayerAttention) -> torch.Tensor:
    """[B, Q, heads, D] of queries, which are the last Q of the T tokens whose keys are [B, T, key heads, D]."""
    q, k, v = (states.transpose(1, 2) for states in (query, key, value))
    asking, tokens = q.shape[2], k.shape[2]
    window = layer.window if layer.window is not None and layer.window < tokens else None
    with torch.autocast(q.device.type, enabled=False):  # it would round what is fp32
        if layer.softcap is not None or layer.sinks is not None:
            return _attend_step_by_step(q, k, v, layer, causal_mask(asking, tokens, window, q.device)).transpose(1, 2)
        square = asking == tokens and window is None
        mask = None if square or (asking == 1 and window is None) else causal_mask(asking, tokens, window, q.device)
        found = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=square and asking > 1, dropout_p=layer.dropout, scale=layer.scaling,
            enable_gqa=q.shape[1] != k.shape[1],
        )  # fmt: skip
    return found.transpose(1, 2)


@functools.lru_cache(maxsize=256)
def causal_mask(asking: int, tokens: int, window: int | None, device: torch.device) -> torch.Tensor:
    """[asking, tokens] bool: what each of the last `asking` tokens sees of a row of `tokens`."""
    with torch.inference_mode(False):  # training reads it too
        mask = torch.ones(asking, tokens, dtype=torch.bool, device=device).tril_(tokens - asking)
        return mask if window is None else mask.triu_(tokens - asking - window + 1)


def _attend_step_by_step(q, k, v, layer: LayerAttention, mask: torch.Tensor) -> torch.Tensor:
    """[B, heads, Q, D] with what the fused kernels do not know: a soft cap and sinks."""
    k, v = (states.repeat_interleave(q.shape[1] // states.shape[1], dim=1) for states in (k, v))
    weights = capped(torch.matmul(q * layer.scaling, k.transpose(2, 3)), layer.softcap)
    sinks = None if layer.sinks is None else layer.sinks[:, None, None]
    weights = softmax_with_sinks(weights.masked_fill(~mask, -torch.inf), sinks)
    return torch.matmul(F.dropout(weights, layer.dropout), v)


def capped(scores: torch.Tensor, softcap: float | None) -> torch.Tensor:
    """Scores within plus and minus `softcap`."""
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def softmax_with_sinks(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Softmax over the last axis of scores [..., T]; sinks [..., 1], or what broadcasts to that, are in its sum."""
    if sinks is None:
        return scores.softmax(-1)
    aside = sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)
    return torch.cat((scores, aside), -1).softmax(-1)[..., :-1]


def _by_varlen(query, key, value, layer: LayerAttention, varlen: Varlen) -> torch.Tensor:
    """All segments in one call of flash attention; queries are aligned with the last of their keys."""
    if varlen.keys is not None:
        key, value = key.index_select(0, varlen.keys), value.index_select(0, varlen.keys)
    back = -1 if layer.window is None else layer.window - 1
    found = varlen_attn(
        query.contiguous(), key.contiguous(), value.contiguous(), varlen.query_starts, varlen.key_starts,
        varlen.longest_query, varlen.longest_key, scale=layer.scaling, window_size=(back, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip
    assert isinstance(found, torch.Tensor)  # with `return_aux` more comes back
    return found
