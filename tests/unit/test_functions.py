"""Functions with gradients of their own beside torch's way of the same, in values, gradients and what they refuse."""

import math

import pytest
import torch
import torch.nn.functional as F

from lmgym.models.fast.functions import RMSNorm, TargetLogprobs, gated_silu, head_logprobs, rms_norm


def compare(ours, theirs, *inputs: torch.Tensor, **tolerance: float) -> None:
    """Values and gradients of all inputs, under weights of chance."""
    found, expected = ours(*inputs), theirs(*inputs)
    torch.testing.assert_close(found, expected, **tolerance)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    both = [torch.autograd.grad((value * weights).sum(), inputs) for value in (found, expected)]
    for ours_, theirs_ in zip(*both, strict=True):
        torch.testing.assert_close(ours_, theirs_, **tolerance)


def drawn(*shape: int, scale: float = 1.0) -> torch.Tensor:
    """Normal numbers that want a gradient."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * scale
    return values.requires_grad_()


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_rms_norm_is_torchs(scale: float) -> None:
    hidden, weight = drawn(7, 12, scale=scale), drawn(12)
    bounds = {"rtol": 1e-5, "atol": 1e-5 * max(1.0, 1 / scale)}  # a gradient is as large as the states are small
    compare(lambda h, w: rms_norm(h, w, 1e-6), lambda h, w: F.rms_norm(h, (12,), w, 1e-6), hidden, weight, **bounds)
    found = rms_norm(hidden, weight, 1e-6)
    assert found.grad_fn.name() == "RMSNormBackward"
    with torch.inference_mode():
        assert torch.equal(rms_norm(hidden, weight, 1e-6), found)


def test_rms_norm_by_hand() -> None:
    hidden = torch.tensor([[3.0, 4.0]], dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([2.0, 1.0], dtype=torch.float64, requires_grad=True)
    found = RMSNorm.apply(hidden, weight, 0.0)
    root = 12.5**0.5  # of (9 + 16) / 2
    torch.testing.assert_close(found, torch.tensor([[6 / root, 4 / root]], dtype=torch.float64))
    found[0, 0].backward()
    # d (2 h0 / r) / d h0 = 2 / r - 2 h0^2 / (2 r^3), / d h1 = -2 h0 h1 / (2 r^3)
    expected = [[2 / root - 9 / root**3, -12 / root**3]]
    torch.testing.assert_close(hidden.grad, torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(weight.grad, torch.tensor([3 / root, 0.0], dtype=torch.float64))


def test_rms_norm_over_heads_and_with_a_frozen_weight() -> None:
    hidden, weight = drawn(5, 3, 8), drawn(8).detach()
    compare(lambda h: rms_norm(h, weight, 1e-5), lambda h: F.rms_norm(h, (8,), weight, 1e-5), hidden)
    assert weight.grad is None


def test_rms_norm_of_other_types_is_torchs_own() -> None:
    hidden, weight = drawn(4, 8).detach().bfloat16().requires_grad_(), drawn(8).detach().bfloat16()
    found = rms_norm(hidden, weight, 1e-6)
    assert torch.equal(found, F.rms_norm(hidden, (8,), weight, 1e-6))
    assert found.grad_fn.name() != "RMSNormBackward"


@torch.no_grad()
def test_a_norm_with_a_bf16_weight_rounds_fp32_states_once_they_are_normed() -> None:
    hidden, weight = drawn(7, 12, scale=100.0), drawn(12).bfloat16()
    found = rms_norm(hidden, weight, 1e-6)
    assert found.dtype == torch.bfloat16
    expected = F.rms_norm(hidden, (12,), None, 1e-6)
    assert torch.equal(found, expected.bfloat16() * weight)


@torch.no_grad()
def test_a_norm_in_float64_stays_so() -> None:
    hidden, weight = drawn(7, 12).double(), drawn(12).double()
    torch.testing.assert_close(
        rms_norm(hidden, weight, 1e-6), F.rms_norm(hidden, (12,), weight, 1e-6), rtol=1e-12, atol=0
    )


@pytest.mark.parametrize("scale", [1.0, 50.0])
def test_a_gated_layer_is_silu_of_the_gate_times_up(scale: float) -> None:
    def theirs(joined: torch.Tensor) -> torch.Tensor:
        gate, up = joined.chunk(2, -1)
        return F.silu(gate) * up

    joined = drawn(9, 14, scale=scale)
    compare(gated_silu, theirs, joined)
    found = gated_silu(joined)
    assert found.grad_fn.name() == "GatedSiluBackward"
    with torch.inference_mode():
        assert torch.equal(gated_silu(joined), found)


@pytest.mark.parametrize(("scale", "dtype"), [(1.0, torch.float32), (60.0, torch.float32), (3.0, torch.bfloat16)])
def test_target_logprobs_are_the_log_softmax(scale: float, dtype: torch.dtype) -> None:
    logits = drawn(6, 11, scale=scale).detach().to(dtype).requires_grad_()
    targets = torch.tensor([0, 10, 3, 3, 7, 1])

    def theirs(logits: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(logits.float(), -1)[torch.arange(6), targets]

    # in bf16 the probabilities are rounded, and then the gradient
    tolerance = {"rtol": 2**-7, "atol": 1e-5} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    compare(lambda x: TargetLogprobs.apply(x.clone(), targets), theirs, logits, **tolerance)
    assert TargetLogprobs.apply(logits.clone(), targets).dtype == torch.float32


def test_a_target_that_cannot_be_drawn_has_its_finite_log_probability() -> None:
    logits = torch.tensor([[0.0, 200.0, -50.0]], requires_grad=True)  # e^-250 is 0 in fp32
    found = TargetLogprobs.apply(logits.clone(), torch.tensor([2]))
    assert found.item() == pytest.approx(-250.0)
    found.sum().backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[0.0, -1.0, 1.0]]))


def test_logprobs_take_no_memory_of_the_logits_size_and_have_one_backward() -> None:
    logits, targets = drawn(4, 9), torch.tensor([1, 8, 0, 3])
    own = logits * 1
    found = TargetLogprobs.apply(own, targets)
    torch.testing.assert_close(own, torch.softmax(logits, -1) - F.one_hot(targets, 9))
    [first] = torch.autograd.grad(found.sum(), own, retain_graph=True)
    assert first.data_ptr() == own.data_ptr()
    with pytest.raises(RuntimeError, match="inplace operation"):
        found.sum().backward()


@pytest.mark.parametrize("rows", [1, 4, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("learns", ["states", "head", "both"])
def test_logprobs_of_a_head_are_those_of_its_logits(rows: int, temperature: float, biased: bool, learns: str) -> None:
    states, weight, bias = drawn(6, 5), drawn(11, 5), drawn(11) if biased else None
    targets = torch.tensor([0, 10, 3, 3, 7, 1])
    head = [one for one in (weight, bias) if one is not None]
    for frozen in {"states": head, "head": [states], "both": []}[learns]:
        frozen.requires_grad_(False)
    learning = [one for one in (states, *head) if one.requires_grad]

    def theirs(*ignored: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(F.linear(states, weight, bias) / temperature, -1)[torch.arange(6), targets]

    def ours(*ignored: torch.Tensor) -> torch.Tensor:
        return head_logprobs(states, weight, bias, targets, temperature, rows)

    compare(ours, theirs, *learning, rtol=1e-5, atol=2e-6)
    with torch.no_grad():
        torch.testing.assert_close(ours(), theirs())


def test_a_head_under_autocast_rounds_as_its_layer_does() -> None:
    states, weight, targets = drawn(6, 64), drawn(11, 64), torch.arange(6)
    with torch.autocast("cpu", torch.bfloat16):
        found = head_logprobs(states, weight, None, targets, 1.0, 4)
        expected = TargetLogprobs.apply(F.linear(states, weight), targets)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected)
    both = (torch.autograd.grad(one.sum(), (states, weight)) for one in (found, expected))
    for ours, theirs in zip(*both, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02 * float(theirs.abs().max()))


def test_a_token_that_is_nearly_certain_keeps_its_small_gradient_in_bf16() -> None:
    weight, states = torch.eye(2, 4), torch.tensor([[9.0, 0.0, 0.0, 0.0]], requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        head_logprobs(states, weight, None, torch.tensor([0]), 1.0, 1).backward()
    rest = 1 / (1 + math.exp(9))  # 1.2e-4, which 1 - p would lose in bf16
    torch.testing.assert_close(states.grad, torch.tensor([[rest, -rest, 0.0, 0.0]]), rtol=0.01, atol=0)


def test_there_is_no_second_derivative() -> None:
    hidden = drawn(3, 4)
    [first] = torch.autograd.grad(rms_norm(hidden, drawn(4), 1e-6).pow(2).sum(), hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()
