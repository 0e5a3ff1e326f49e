"""Matrix products by oneDNN: what F.linear gives, and its gradients."""

import pytest
import torch
import torch.nn.functional as F

from lmgym import products
from lmgym.products import product


@pytest.mark.parametrize("trained", [(True, True), (False, True), (True, False)])
def test_it_is_the_linear_function_with_its_gradients(trained: tuple[bool, bool]) -> None:
    torch.manual_seed(0)
    inputs, weight = torch.randn(40, 12), torch.randn(20, 12)
    asked = [x.requires_grad_() for x, on in zip((inputs, weight), trained, strict=True) if on]
    ours, theirs = product(inputs, weight), F.linear(inputs, weight)
    torch.testing.assert_close(ours, theirs)
    direction = torch.randn_like(ours)
    found, expected = (torch.autograd.grad(out, asked, direction) for out in (ours, theirs))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_other_types_and_a_bias_go_the_ordinary_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_):
        raise AssertionError("called")

    monkeypatch.setattr(products, "_multiply", refuse)
    inputs, weight, bias = torch.randn(4, 3), torch.randn(5, 3), torch.randn(5)
    torch.testing.assert_close(product(inputs, weight, bias), F.linear(inputs, weight, bias))
    torch.testing.assert_close(product(inputs.double(), weight.double()), F.linear(inputs.double(), weight.double()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert product(inputs, weight).dtype == torch.bfloat16
    with pytest.raises(AssertionError, match="called"):
        product(inputs, weight)
