"""Attention of packed rows: one function, registered with transformers, that any decoder calls in every layer.

Design decisions:
- The rows are passed in a ContextVar: some families drop keyword arguments that they do not know.
- The attention of a forward is an object that is called once a layer, in order. It holds which tokens see which, and
  the keys and values that are kept (generation) or were kept (a shared prefix).
- On a CPU each run of equal segments is one call of torch's fused attention, in fp32: its backward in bf16 takes twice
  as long. On a GPU the whole batch is one call of torch's variable-length flash attention. No [N, N] mask exists.
- What torch's kernels compute only with T x T weights goes in blocks of queries (attention_blocks.py), but for dropout.
"""

import contextlib
import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from lmgym.models.attention_blocks import attend_in_blocks
from lmgym.models.config_fields import attn_implementation
from lmgym.models.forward.packed_rows import PackedRows, Varlen
from lmgym.models.layer_attention import FLASH_WIDTH, LayerAttention, eager_attention

try:
    from torch.nn.attention.varlen import varlen_attn
except ModuleNotFoundError:  # torch before 2.10
    VARLEN: frozenset[str] = frozenset()
else:
    VARLEN = frozenset(inspect.signature(varlen_attn).parameters)

NAME = "lmgym_packed"


class Attention(Protocol):
    """Attention of one forward, which calls it once a layer, in order."""

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: LayerAttention
    ) -> torch.Tensor:
        """[N, heads, D] of queries [N, heads, D], keys and values [N, key heads, D] of all tokens."""
        ...


_current: ContextVar[tuple[object, Attention] | None] = ContextVar("attention", default=None)
_recorded: ContextVar[list | None] = ContextVar("recorded", default=None)


@contextlib.contextmanager
def use_attention(config, attention: Attention) -> Iterator[None]:
    """Within a `with`, the model with this config runs packed rows through `attention`."""
    token = _current.set((config, attention))
    try:
        with attn_implementation(config, NAME):
            yield
    finally:
        _current.reset(token)


def checkpoint_contexts() -> tuple[contextlib.AbstractContextManager, contextlib.AbstractContextManager]:
    """For `context_fn` of torch's checkpoint: layers recomputed in the backward attend as in the forward."""
    current = _current.get()
    return contextlib.nullcontext(), contextlib.nullcontext() if current is None else use_attention(*current)


@contextlib.contextmanager
def record_attention_calls() -> Iterator[list[tuple[torch.nn.Module, LayerAttention]]]:
    """The modules that call our attention within a `with`, and their settings."""
    calls: list[tuple[torch.nn.Module, LayerAttention]] = []
    token = _recorded.set(calls)
    try:
        yield calls
    finally:
        _recorded.reset(token)


def _transformers_interface(
    module,
    query,
    key,
    value,
    attention_mask,
    scaling=None,
    dropout=0.0,
    sliding_window=None,
    softcap=None,
    s_aux=None,
    **_,
) -> tuple[torch.Tensor, None]:
    """[1, N, heads, D] of queries, keys and values [1, heads, N, D]; the signature is that of AttentionInterface."""
    current = _current.get()
    if current is None:
        raise ValueError(f"attention {NAME!r} is for packed rows alone; else set_attn_implementation('sdpa')")
    layer = LayerAttention(
        query.shape[-1] ** -0.5 if scaling is None else scaling, sliding_window, softcap, s_aux, dropout
    )
    recorded = _recorded.get()
    if recorded is not None:
        recorded.append((module, layer))
    # under autocast, rotary embeddings and norms turn queries and keys into fp32: values keep the working dtype
    query, key, value = (states[0].transpose(0, 1).to(value.dtype) for states in (query, key, value))
    return current[1](query, key, value, layer)[None], None


AttentionInterface.register(NAME, _transformers_interface)


@dataclass
class KeyValues:
    """Keys and values of N tokens, a layer [N, key heads, D] each."""

    keys: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)


class RowAttention:
    """Attention within packed rows.

    `cached` are keys and values of tokens that were computed before: segments whose prefix has that number, which is
    negative, continue them, and the rows' positions continue theirs. The rows' own are appended to `record`. With
    `num_layers`, the last layer computes attention only for the tokens that are read, and gives 0 at the others.
    """

    def __init__(
        self,
        rows: PackedRows,
        cached: Mapping[int, KeyValues] | None = None,
        record: KeyValues | None = None,
        num_layers: int = 0,
    ) -> None:
        self.rows, self._cached, self.record, self.num_layers = rows, cached or {}, record, num_layers
        self._runs = _runs(rows.lengths, rows.prefixes)
        self._layer = 0

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: LayerAttention
    ) -> torch.Tensor:
        """See `Attention`."""
        if self.record is not None:
            self.record.keys.append(key)
            self.record.values.append(value)
        before = {number: (one.keys[self._layer], one.values[self._layer]) for number, one in self._cached.items()}
        self._layer += 1
        if not before and self.rows.varlen is not None and _flash_supports(query, layer):
            return _flash_attention(query, key, value, layer, self.rows.varlen)
        places, reads = self.rows.places, self.rows.reads
        if self._layer != self.num_layers or reads is None or not len(places):
            return self._by_runs(query, key, value, layer, before, self.rows.lengths)
        found = self._by_runs(query.index_select(0, places), key, value, layer, before, reads)
        return found.new_zeros(len(query), *found.shape[1:]).index_copy(0, places, found)

    def _by_runs(
        self, query, key, value, layer: LayerAttention, cached: Mapping[int, tuple], query_counts: Sequence[int]
    ) -> torch.Tensor:
        """Attention run by run. `query_counts` [S] are the queries of each segment, those of its last tokens."""
        dtype = query.dtype
        if query.device.type == "cpu" and dtype == torch.bfloat16:
            query, key, value = query.float(), key.float(), value.float()
        tokens = [run.count * run.length for run in self._runs]
        counts = [query_counts[run.first : run.first + run.count] for run in self._runs]
        # one split a tensor: its backward is one concatenation, that of a slice fills a whole tensor with zeros
        parts = zip(query.split([sum(n) for n in counts]), key.split(tokens), value.split(tokens), strict=True)
        seen_before = {-1: None, **cached}  # keys and values of the segments that others continue
        outputs = []
        for run, run_counts, (q, k, v) in zip(self._runs, counts, parts, strict=True):
            k, v = (states.unflatten(0, (run.count, run.length)) for states in (k, v))
            if (before := seen_before[run.prefix]) is not None:
                k, v = (
                    torch.cat((old.to(new).expand(run.count, *old.shape), new), 1)
                    for old, new in zip(before, (k, v), strict=True)
                )
            if run.continued:
                seen_before[run.first] = (k[0], v[0])
            outputs += _attend_run(q, k, v, layer, run_counts)
        return torch.cat(outputs).to(dtype)


def _attend_run(q, k, v, layer: LayerAttention, counts: Sequence[int]) -> list[torch.Tensor]:
    """[n, heads, D] of a run's n queries, `counts` a segment, with keys and values [segments, T, key heads, D]."""
    if len(set(counts)) == 1:
        return [attend(q.unflatten(0, (len(counts), -1)), k, v, layer).flatten(0, 1)] if len(q) else []
    segments = zip(q.split(counts), k.split(1), v.split(1), strict=True)
    return [attend(queries[None], keys, values, layer)[0] for queries, keys, values in segments if len(queries)]


@dataclass(frozen=True)
class _Run:
    """Neighbouring segments of equal length that continue the same segment (-1: none), computed in one call."""

    first: int
    count: int
    length: int
    prefix: int
    continued: bool
    """another segment continues this one; such a run has one segment"""


def _runs(lengths: Sequence[int], prefixes: Sequence[int]) -> list[_Run]:
    continued = set(prefixes)
    runs: list[_Run] = []
    for segment, (length, prefix) in enumerate(zip(lengths, prefixes, strict=True)):
        new = _Run(segment, 1, length, prefix, segment in continued)
        last = runs[-1] if runs else None
        if last and replace(last, first=segment, count=1) == new and not new.continued:
            runs[-1] = replace(last, count=last.count + 1)
        else:
            runs.append(new)
    return runs


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: LayerAttention) -> torch.Tensor:
    """[B, Q, heads, D] of queries, which are the last Q of the T tokens whose keys are [B, T, key heads, D]."""
    q, k, v = (states.transpose(1, 2) for states in (query, key, value))
    queries, tokens = q.shape[2], k.shape[2]
    window = layer.window if layer.window is not None and layer.window < tokens else None
    capped_or_sinks = layer.softcap is not None or layer.sinks is not None
    with torch.autocast(q.device.type, enabled=False):  # it would round what is fp32
        if layer.dropout and capped_or_sinks:
            return eager_attention(q, k, v, layer, causal_mask(queries, tokens, window, q.device)).transpose(1, 2)
        # torch keeps the mask of a window in each layer: with rows longer than the model is wide, more than the queries
        large_mask = window is not None and queries * tokens > q.numel()
        if layer.dropout or not (capped_or_sinks or large_mask):
            settings = _fused_settings(q, k, layer, window)
            if layer.dropout or torch._fused_sdp_choice(q, k, v, **settings):  # 0: a kernel that holds all weights
                return F.scaled_dot_product_attention(q, k, v, **settings).transpose(1, 2)
        return attend_in_blocks(query, key, value, layer.scaling, window, layer.softcap, layer.sinks)


def _fused_settings(q: torch.Tensor, k: torch.Tensor, layer: LayerAttention, window: int | None) -> dict[str, Any]:
    """Arguments of torch's `scaled_dot_product_attention` for queries [B, heads, Q, D] and keys of T tokens."""
    queries, tokens = q.shape[2], k.shape[2]
    square = queries == tokens and window is None
    no_mask = square or (queries == 1 and window is None)
    return {
        "attn_mask": None if no_mask else causal_mask(queries, tokens, window, q.device),
        "is_causal": square and queries > 1,
        "dropout_p": layer.dropout,
        "scale": layer.scaling,
        "enable_gqa": q.shape[1] != k.shape[1],
    }


@functools.lru_cache(maxsize=256)
def causal_mask(queries: int, tokens: int, window: int | None, device: torch.device) -> torch.Tensor:
    """[queries, tokens] bool: the tokens of a row that each of its last `queries` tokens sees."""
    with torch.inference_mode(False):  # training uses the cached mask too
        mask = torch.ones(queries, tokens, dtype=torch.bool, device=device).tril_(tokens - queries)
        return mask if window is None else mask.triu_(tokens - queries - window + 1)


def _flash_supports(query: torch.Tensor, layer: LayerAttention) -> bool:
    half, width = query.dtype in (torch.float16, torch.bfloat16), query.shape[-1]
    kernel = query.is_cuda and half and "window_size" in VARLEN and width % 8 == 0 and width <= FLASH_WIDTH
    return kernel and layer.dropout == 0 and layer.softcap is None and layer.sinks is None


def _flash_attention(query, key, value, layer: LayerAttention, varlen: Varlen) -> torch.Tensor:
    """All segments in one call; each segment's queries are aligned with the last of its keys."""
    if varlen.keys is not None:
        key, value = key.index_select(0, varlen.keys), value.index_select(0, varlen.keys)
    back = -1 if layer.window is None else layer.window - 1
    # torch 2.11 has no such setting, and its kernel takes fewer key heads without it
    grouped = {"enable_gqa": query.shape[1] != key.shape[1]} if "enable_gqa" in VARLEN else {}
    found = varlen_attn(
        query.contiguous(),
        key.contiguous(),
        value.contiguous(),
        varlen.query_starts,
        varlen.key_starts,
        varlen.longest_query,
        varlen.longest_key,
        scale=layer.scaling,
        window_size=(back, 0),
        **grouped,
    )
    assert isinstance(found, torch.Tensor)  # a tuple only with return_aux
    return found
