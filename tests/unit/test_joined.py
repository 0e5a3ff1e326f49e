"""Joined layers: the same product in each of its ways, and copies that follow the weights."""

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from lmgym.models.fast.joined import FEW_ROWS, SMALL, SMALL_IN_BF16, Joined, can_pack

WIDTH = 256
LARGE = 2 * SMALL // WIDTH  # columns of a matrix that is packed


def layers(*widths: int, bias: bool = False) -> list[nn.Linear]:
    torch.manual_seed(0)
    return [nn.Linear(WIDTH, width, bias=bias) for width in widths]


def separately(parts, inputs: torch.Tensor) -> torch.Tensor:
    return torch.cat([part(inputs) for part in parts], -1)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("widths", [(LARGE,), (LARGE // 2, LARGE), (8, 24)])
@pytest.mark.parametrize("rows", [1, 2, 3, 16, 33, *FEW_ROWS[-1:], FEW_ROWS[-1] + 1, WIDTH + 1])
@torch.no_grad()
def test_every_way_gives_what_the_layers_give(rows: int, widths: tuple[int, ...], bias: bool) -> None:
    parts = layers(*widths, bias=bias)
    joined, inputs = Joined(*parts), torch.randn(rows, WIDTH)
    torch.testing.assert_close(joined(inputs), separately(parts, inputs), rtol=0, atol=1e-5)
    joined.refresh()
    torch.testing.assert_close(joined(inputs), separately(parts, inputs), rtol=0, atol=1e-5)


@torch.no_grad()
def test_gpt2s_layers_are_the_other_way_round() -> None:
    part = Conv1D(LARGE, WIDTH)
    nn.init.normal_(part.bias)
    joined = Joined(part)
    joined.refresh()
    for rows in (1, 5, 100):
        inputs = torch.randn(rows, WIDTH)
        torch.testing.assert_close(joined(inputs), part(inputs), rtol=0, atol=1e-5)


@pytest.mark.skipif(not can_pack(torch.bfloat16), reason="this processor has no bf16 products")
@pytest.mark.parametrize("rows", [1, 4])
@torch.no_grad()
def test_bf16_is_the_rounded_product(rows: int) -> None:
    parts = layers(SMALL_IN_BF16 // WIDTH)
    parts[0].to(torch.bfloat16)
    joined, inputs = Joined(*parts), torch.randn(rows, WIDTH, dtype=torch.bfloat16)
    joined.refresh()
    torch.testing.assert_close(joined(inputs), parts[0](inputs))
    assert joined.packed is not None


@pytest.mark.parametrize("rows", [1, 4])
def test_copies_follow_the_weights(rows: int) -> None:
    parts = layers(LARGE, 8)
    joined, inputs = Joined(*parts), torch.randn(rows, WIDTH)
    with torch.no_grad():
        joined.refresh()
        joined(inputs)
    with torch.no_grad():
        parts[1].weight.add_(1.0)
    with torch.no_grad():
        joined.refresh()
        torch.testing.assert_close(joined(inputs), separately(parts, inputs))
        parts[0].weight.data.add_(1.0)  # leaves no trace, as fused optimizers do
        joined.refresh()
        before = joined(inputs)
        joined.refresh(renew=True)
        assert (joined(inputs) - before).abs().max() > 0.1
        torch.testing.assert_close(joined(inputs), separately(parts, inputs))


@torch.no_grad()
def test_only_what_is_needed_is_copied() -> None:
    parts = layers(LARGE)
    joined = Joined(*parts)
    joined.refresh()
    joined(torch.randn(FEW_ROWS[-1] + 1, WIDTH))
    assert joined.packed is None and joined.transposed is None  # noqa: PT018
    joined(torch.randn(1, WIDTH))
    assert joined.packed is None
    assert joined.transposed is not None
    joined(torch.randn(2, WIDTH))
    assert joined.packed is not None
    small = Joined(*layers(8))
    small.refresh()
    small(torch.randn(2, WIDTH))
    assert small.packed is None


def test_gradients_flow_where_nothing_was_refreshed() -> None:
    parts = layers(LARGE, 8)
    inputs = torch.randn(4, WIDTH)
    Joined(*parts)(inputs).sum().backward()
    assert all(part.weight.grad is not None for part in parts)
