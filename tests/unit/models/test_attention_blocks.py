"""Attention in blocks of queries beside the formula."""

import itertools

import pytest
import torch

from lmgym.models import attention_blocks as blocks
from lmgym.models.layer_attention import LayerAttention


def all_at_once(query, key, value, layer: LayerAttention) -> torch.Tensor:
    """[B, Q, heads, E], query by query: the formula."""
    outputs, group = torch.empty(*query.shape[:3], value.shape[-1], dtype=query.dtype), query.shape[2] // key.shape[2]
    offset = key.shape[1] - query.shape[1]
    for b, q, h in itertools.product(*map(range, query.shape[:3])):
        first = 0 if layer.window is None else max(0, offset + q - layer.window + 1)
        seen = slice(first, offset + q + 1)
        scores = key[b, seen, h // group] @ query[b, q, h] * layer.scaling
        if layer.softcap is not None:
            scores = layer.softcap * (scores / layer.softcap).tanh()
        if layer.sinks is not None:
            scores = torch.cat((scores, layer.sinks[h, None]))
        outputs[b, q, h] = scores.softmax(0)[: seen.stop - first] @ value[b, seen, h // group]
    return outputs


def states_of(shape: tuple[int, int, int, int, int, int, int], dtype: torch.dtype) -> list[torch.Tensor]:
    """Queries, keys, values and sinks of (B, Q, T, heads, key heads, D, E)."""
    torch.manual_seed(0)
    rows, queries, tokens, heads, key_heads, width, value_width = shape
    sizes = ((rows, queries, heads, width), (rows, tokens, key_heads, width), (rows, tokens, key_heads, value_width))
    return [torch.randn(size, dtype=dtype, requires_grad=True) for size in (*sizes, (heads,))]


@pytest.mark.parametrize("shape", [(1, 21, 21, 4, 2, 4, 4), (2, 21, 21, 2, 2, 4, 3), (2, 5, 19, 4, 1, 4, 4)])
@pytest.mark.parametrize("window", [None, 1, 3, 9, 40])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_outputs_and_gradients_are_those_of_the_formula(monkeypatch, shape, window, softcap, with_sinks) -> None:
    monkeypatch.setattr(blocks, "BLOCK_SCORES", 1)  # blocks of 4 queries, a head's width
    for dtype, bar in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        *states, sinks = states_of(shape, dtype)
        layer = LayerAttention(0.7, window, softcap, sinks if with_sinks else None)
        inputs = [*states, sinks] if with_sinks else states
        wanted = all_at_once(*states, layer)
        found = blocks.attend_in_blocks(*states, layer.scaling, window, softcap, layer.sinks)
        assert (found - wanted).abs().max() < bar
        weights = torch.randn_like(wanted)
        for own, other in zip(
            torch.autograd.grad(found, inputs, weights), torch.autograd.grad(wanted, inputs, weights), strict=True
        ):
            assert (own - other).abs().max() < bar * max(1, other.abs().max().item())


def test_blocks_in_16_bits_are_as_exact_as_their_inputs() -> None:
    *states, sinks = (
        state.detach().bfloat16().requires_grad_() for state in states_of((2, 40, 40, 4, 2, 8, 8), torch.float32)
    )
    exact = [state.detach().float().requires_grad_() for state in (*states, sinks)]
    found = blocks.attend_in_blocks(*states, 0.7, 9, 2.0, sinks)
    wanted = all_at_once(*exact[:3], LayerAttention(0.7, 9, 2.0, exact[3]))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), wanted, rtol=0.02, atol=0.02)
    weights = torch.randn_like(wanted)
    ours = torch.autograd.grad(found, [*states, sinks], weights.bfloat16())
    for own, other in zip(ours, torch.autograd.grad(wanted, exact, weights), strict=True):
        assert own.dtype == torch.bfloat16
        torch.testing.assert_close(own.float(), other, rtol=0.05, atol=0.05 * other.abs().max().item())


def test_a_block_holds_no_more_scores_than_its_bound_or_than_numbers_of_the_queries() -> None:
    for heads, tokens, width in itertools.product((1, 8, 64), (16, 1024, 1 << 17), (16, 64, 256)):
        scores = blocks.block_size(heads, tokens, width) * heads * tokens
        assert 0 < scores <= max(blocks.BLOCK_SCORES, heads * tokens * width)
