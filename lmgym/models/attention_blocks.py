"""Attention in blocks of queries, each over the keys that it sees: memory grows with T, where weights grow with T x T.

For what torch's fused kernels do not support, such as soft caps and sinks; plain matrix products, on any device. The
forward keeps what flash attention keeps (Dao 2023, algorithm 1): its inputs, its output and a normaliser for each
query. The backward computes each block's weights again from these (algorithm 2).
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

BLOCK_SCORES = 1 << 20  # held at a time if rows are short: 4 MiB in fp32 remain in a CPU's cache between operations


def attend_in_blocks(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """[B, Q, heads, E] of queries [B, Q, heads, D], which are the last Q of T tokens with keys [B, T, key heads, D]
    and values [B, T, key heads, E]; sinks [heads]. See `LayerAttention`. It can be differentiated once.
    """
    found = _BlockAttention.apply(query, key, value, sinks, _Scoring(scaling, window, softcap))
    assert isinstance(found, torch.Tensor)
    return found


def block_size(heads: int, tokens: int, width: int) -> int:
    """Queries of a block: its scores are at most BLOCK_SCORES, or as many as there are numbers in the queries.

    Neither grows with `tokens` squared. The second keeps the matrices of long rows large enough to be fast.
    """
    return max(width, BLOCK_SCORES // (heads * tokens))


class _Scoring(NamedTuple):
    """How products of queries and keys become scores."""

    scaling: float
    window: int | None
    softcap: float | None

    def scores(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """[R, M, K] in at least fp32 of queries [R, M, D] and keys [R, K, D]."""
        products = torch.bmm(query * self.scaling, key.transpose(1, 2)).to(_exact(query.dtype))
        return products if self.softcap is None else products.div_(self.softcap).tanh_().mul_(self.softcap)


class _Block(NamedTuple):
    """Queries `start` to `end`, and the keys `first` to `last` that at least one of them sees."""

    start: int
    end: int
    first: int
    last: int

    def queries(self, states: torch.Tensor) -> torch.Tensor:
        """[R, group * n, D] of all queries' states [B, key heads, group, Q, D]."""
        return states[:, :, :, self.start : self.end].flatten(2, 3).flatten(0, 1)

    def keys(self, states: torch.Tensor) -> torch.Tensor:
        """[R, K, D] of all tokens' states [R, T, D]."""
        return states[:, self.first : self.last]

    def put(self, states: torch.Tensor, new: torch.Tensor) -> None:
        """Write [R, group * n, D] into states [B, key heads, group, Q, D]."""
        place = states[:, :, :, self.start : self.end]
        place.copy_(new.view(place.shape))

    def hide_(self, scores: torch.Tensor, offset: int, window: int | None, fill: float) -> torch.Tensor:
        """Scores [R, group * n, K] with `fill` at keys that a query does not see; query 0 is token `offset`."""
        n = self.end - self.start
        by_query = scores.unflatten(1, (-1, n))
        square = torch.ones(n, n, dtype=torch.bool, device=scores.device)
        by_query[..., -n:].masked_fill_(square.triu_(1), fill)
        if window is not None:  # keys before that of the last query
            oldest = offset + self.start - window + 1 - self.first  # column of the first key that query `start` sees
            before = scores.new_ones(n, max(0, oldest + n - 1), dtype=torch.bool).tril_(oldest - 1)
            by_query[..., : before.shape[1]].masked_fill_(before, fill)
        return scores


class _BlockAttention(torch.autograd.Function):
    """`attend_in_blocks`. Autocast is off in the forward, and so it is in the backward."""

    @staticmethod
    def forward(ctx: Any, query, key, value, sinks: torch.Tensor | None, scoring: _Scoring) -> torch.Tensor:
        key_heads, offset = key.shape[2], key.shape[1] - query.shape[1]
        output = query.new_empty(*query.shape[:3], value.shape[-1])
        normalisers = query.new_empty(*query.shape[:3], 1, dtype=_exact(query.dtype))
        q, out, norms = (_by_key_head(states, key_heads) for states in (query, output, normalisers))
        k, v = _rows(key), _rows(value)
        # a sink is a key without a value, whose score each query of its head has
        sink = None if sinks is None else _by_key_head(sinks[:, None].to(normalisers).expand_as(normalisers), key_heads)
        for block in _blocks(query, key, scoring.window):
            scores = scoring.scores(block.queries(q), block.keys(k))
            largest = block.hide_(scores, offset, scoring.window, -torch.inf).amax(-1, keepdim=True)
            total = scores.sub_(largest).exp_().sum(-1, keepdim=True)
            if sink is not None:
                total += (block.queries(sink) - largest).exp_()
            block.put(out, torch.bmm(scores.to(v.dtype), block.keys(v)) / total)
            block.put(norms, largest + total.log())
        ctx.save_for_backward(query, key, value, sinks, output, normalisers)
        ctx.scoring = scoring
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor):
        query, key, value, sinks, output, normalisers = ctx.saved_tensors
        # for each query, the sum over its keys of a weight times the weight's gradient; a sink's value is 0
        sums = (gradient.to(normalisers.dtype) * output).sum(-1, keepdim=True)
        with torch.autocast(query.device.type, enabled=False):
            gradients = _gradients(query, key, value, gradient, sums, normalisers, ctx.scoring)
        of_sinks = None
        if sinks is not None:
            weights = (sinks[:, None].to(normalisers) - normalisers).exp_()
            of_sinks = -(weights * sums).sum((0, 1, 3)).to(sinks.dtype)
        return *gradients, of_sinks, None


def _gradients(
    query, key, value, gradient, sums: torch.Tensor, normalisers: torch.Tensor, scoring: _Scoring
) -> tuple[torch.Tensor, ...]:
    """Gradients of queries, keys and values from that of the output."""
    key_heads, offset, exact = key.shape[2], key.shape[1] - query.shape[1], normalisers.dtype
    of_query = torch.empty_like(query)
    q, g, of_q, total, norms = (
        _by_key_head(states, key_heads) for states in (query, gradient, of_query, sums, normalisers)
    )
    k, v = _rows(key), _rows(value)
    of_k, of_v = (torch.zeros_like(states, dtype=exact) for states in (k, v))
    for block in _blocks(query, key, scoring.window):
        queries, upstream = block.queries(q), block.queries(g)
        scores = scoring.scores(queries, block.keys(k))
        weights = block.hide_((scores - block.queries(norms)).exp_(), offset, scoring.window, 0.0)
        block.keys(of_v).add_(torch.bmm(weights.to(v.dtype).transpose(1, 2), upstream))
        of_scores = torch.bmm(upstream, block.keys(v).transpose(1, 2)).to(exact)
        of_scores.sub_(block.queries(total)).mul_(weights)
        if scoring.softcap is not None:  # tanh' is 1 - tanh^2
            of_scores.mul_(scores.div_(scoring.softcap).square_().neg_().add_(1))
        of_products = of_scores.mul_(scoring.scaling).to(query.dtype)
        block.put(of_q, torch.bmm(of_products, block.keys(k)))
        block.keys(of_k).add_(torch.bmm(of_products.transpose(1, 2), queries))
    return of_query, _by_token(of_k, key), _by_token(of_v, value)


def _blocks(query: torch.Tensor, key: torch.Tensor, window: int | None) -> Iterator[_Block]:
    (rows, queries, heads, width), tokens = query.shape, key.shape[1]
    size = block_size(rows * heads, tokens, width)
    for start in range(0, queries, size):
        end, token = min(start + size, queries), tokens - queries + start
        first = 0 if window is None else max(0, token - window + 1)
        yield _Block(start, end, first, token + end - start)


def _exact(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _by_key_head(states: torch.Tensor, key_heads: int) -> torch.Tensor:
    """[B, key heads, group, Q, D] of states [B, Q, heads, D], a view."""
    return states.unflatten(2, (key_heads, -1)).permute(0, 2, 3, 1, 4)


def _rows(states: torch.Tensor) -> torch.Tensor:
    """[R = B * key heads, T, D] of states [B, T, key heads, D]."""
    return states.transpose(1, 2).flatten(0, 1)


def _by_token(states: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """What `_rows` was made of, in the dtype of `like`."""
    return states.unflatten(0, (len(like), -1)).transpose(1, 2).to(like.dtype)
