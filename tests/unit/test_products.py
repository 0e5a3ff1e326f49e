"""Products by whichever library, beside torch's own."""

import pytest
import torch

from lmgym.products import added_product, by_onednn, product


@pytest.mark.parametrize(("rows", "wide", "inner"), [(256, 300, 257), (64, 512, 128), (63, 512, 128), (256, 8, 8)])
@pytest.mark.parametrize("biased", [False, True])
def test_a_product_is_torchs(rows: int, wide: int, inner: int, biased: bool) -> None:
    torch.manual_seed(0)
    inputs, weight = torch.randn(rows, inner), torch.randn(wide, inner)
    bias = torch.randn(wide) if biased else None
    expected = torch.nn.functional.linear(inputs, weight, bias)
    for given in (weight, weight.t().contiguous().t(), torch.cat([weight, weight], 1)[:, :inner]):
        torch.testing.assert_close(product(inputs, given, bias), expected, rtol=1e-4, atol=1e-4)


def test_it_goes_by_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", lambda *arguments: asked.append(arguments))
    monkeypatch.setattr("lmgym.products.by_onednn", lambda: True)
    weight = torch.randn(256, 256)
    product(torch.randn(64, 256), weight)
    assert len(asked) == 1
    product(torch.randn(63, 256), weight)  # few rows, a part of a matrix, another type: torch's own
    product(torch.randn(64, 128), torch.randn(512, 256)[:, :128])
    product(torch.randn(64, 256).double(), weight.double())
    monkeypatch.setattr("lmgym.products.by_onednn", lambda: False)
    product(torch.randn(64, 256), weight)
    assert len(asked) == 1
    assert by_onednn() in (True, False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_add_up_in_fp32(dtype: torch.dtype) -> None:
    left, right = torch.randn(32, 5).to(dtype), torch.randn(32, 7).to(dtype)
    total = None
    for rows in (slice(0, 16), slice(16, 32)):
        total = added_product(total, left[rows], right[rows])
    assert total.dtype == torch.float32
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(total, left.float().t() @ right.float(), rtol=tolerance, atol=tolerance)
