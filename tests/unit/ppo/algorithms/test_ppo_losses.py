"""Losses and KL estimates: numbers worked out by hand, gradients, masked rubbish, and extreme inputs."""

import math
from typing import Literal

import pytest
import torch

from ppo.algorithms.kl import kl_estimates
from ppo.algorithms.losses import SumAndCount, clipped_loss, value_loss
from ppo.algorithms.masking import log_ratio

NAN, INF = float("nan"), float("inf")
KINDS = ("k1", "k2", "k3")


def policy_loss(
    logprobs: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor, clip: float = 0.2
) -> SumAndCount:
    """The sum of the clipped losses, and the number of tokens."""
    losses, _ = clipped_loss(logprobs, log_ratio(logprobs, old, mask), advantages, mask, clip, clip)
    return losses.sum(), mask.bool().sum()


def kl_estimate(
    logprobs: torch.Tensor, reference: torch.Tensor, mask: torch.Tensor, kind: Literal["k1", "k2", "k3"] = "k1"
) -> torch.Tensor:
    """The mean of the estimates over the mask."""
    estimates = kl_estimates(logprobs, reference, mask, kind)
    return (estimates.sum(dtype=torch.float64) / mask.bool().sum()).to(estimates.dtype)


def random_inputs(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probs, older ones, advantages, and a mask with holes."""
    generator = torch.Generator().manual_seed(seed)
    logprobs, noise, advantages = torch.randn(3, 4, 7, generator=generator, dtype=torch.float64)
    return logprobs - 3, logprobs - 3 + noise * 0.3, advantages, torch.rand(4, 7, generator=generator) < 0.7


def test_the_policy_loss_of_four_tokens_by_hand() -> None:
    # ratios 1.5 .5 1.5 .5 with advantages 2 2 -1 -1, clipped at .8 and 1.2:
    # max(-3, -2.4) = -2.4; max(-1, -1.6) = -1; max(1.5, 1.2) = 1.5; max(.5, .8) = .8
    ratios, advantages = torch.tensor([[1.5, 0.5, 1.5, 0.5, 9.0]]), torch.tensor([[2.0, 2.0, -1.0, -1.0, 9.0]])
    mask, old = torch.tensor([[1, 1, 1, 1, 0]]), torch.full((1, 5), -2.0)
    total, count = policy_loss(old + ratios.log(), old, advantages, mask)
    assert total.item() == pytest.approx(-2.4 - 1.0 + 1.5 + 0.8)
    assert count.item() == 4
    _, clipped = clipped_loss(old + ratios.log(), ratios.log(), advantages, mask)
    assert clipped.tolist() == [[True, False, False, True, False]]


def test_a_token_beyond_the_clip_on_the_winning_side_has_no_gradient_and_on_the_other_has() -> None:
    old = torch.full((1, 4), -2.0)
    logprobs = (old + torch.tensor([[1.5, 0.5, 1.5, 0.5]]).log()).requires_grad_()
    policy_loss(logprobs, old, torch.tensor([[2.0, 2.0, -1.0, -1.0]]), torch.ones(1, 4))[0].backward()
    assert logprobs.grad[0].tolist() == pytest.approx([0.0, -1.0, 1.5, 0.0])  # -A rho, or nothing


def test_gradients_agree_with_finite_differences() -> None:
    logprobs, old, advantages, mask = random_inputs(0)
    free = logprobs.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: policy_loss(x, old, advantages, mask)[0], free)
    assert torch.autograd.gradcheck(lambda x: value_loss(x, old, advantages, mask)[0], free)
    for kind in KINDS:
        assert torch.autograd.gradcheck(lambda x, kind=kind: kl_estimate(x, old, mask, kind), free)


def test_the_value_loss_by_hand() -> None:
    # old 0, clip .2. V .1, R 1: .81 both ways. V 1, R 1: max(0, (.2 - 1)^2) = .64. V 1, R -1: max(4, 1.44) = 4.
    values, returns = torch.tensor([[0.1, 1.0, 1.0, 7.0]]), torch.tensor([[1.0, 1.0, -1.0, 0.0]])
    total, count = value_loss(values, torch.zeros(1, 4), returns, torch.tensor([[1, 1, 1, 0]]))
    assert total.item() == pytest.approx((0.81 + 0.64 + 4.0) / 2)
    assert count.item() == 3


def test_kl_estimates_by_hand() -> None:
    logprobs, reference = torch.tensor([[-1.0, -3.0, 5.0]]), torch.tensor([[-2.0, -1.0, NAN]])  # x = 1, -2
    mask = torch.tensor([[1, 1, 0]])
    assert kl_estimate(logprobs, reference, mask).item() == pytest.approx(-0.5)
    assert kl_estimate(logprobs, reference, mask, "k2").item() == pytest.approx((0.5 + 2.0) / 2)
    expected = (math.exp(-1) - 1 + 1 + math.exp(2) - 1 - 2) / 2
    assert kl_estimate(logprobs, reference, mask, "k3").item() == pytest.approx(expected)


def test_k1_and_k3_have_the_kl_as_their_mean_over_the_policys_tokens_and_no_other_sign_has() -> None:
    policy, reference = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    tokens = torch.tensor([[0] * 5 + [1] * 3 + [2] * 2])  # as often as the policy samples them
    logprobs, others, mask = policy.log()[tokens], reference.log()[tokens], torch.ones(1, 10)
    true = (policy * (policy / reference).log()).sum().item()
    assert kl_estimate(logprobs, others, mask, "k1").item() == pytest.approx(true, abs=1e-6)
    assert kl_estimate(logprobs, others, mask, "k3").item() == pytest.approx(true, abs=1e-6)
    assert kl_estimate(others, logprobs, mask, "k3").item() != pytest.approx(true, abs=1e-2)  # trlx's exp(x) - 1 - x


def test_the_kl_of_a_policy_to_itself_is_exactly_0() -> None:
    logprobs = random_inputs(1)[0]
    assert [kl_estimate(logprobs, logprobs, torch.ones(4, 7), kind).item() for kind in KINDS] == [0, 0, 0]


@pytest.mark.parametrize("rubbish", [NAN, INF, -INF, 1e38])
def test_masked_places_change_no_loss_and_get_a_gradient_of_exactly_0(rubbish: float) -> None:
    *inputs, mask = random_inputs(2)
    losses = [lambda *x: policy_loss(*x, mask)[0], lambda *x: value_loss(*x, mask)[0]]
    losses += [lambda x, y, _, kind=kind: kl_estimate(x, y, mask, kind) for kind in KINDS]
    for loss in losses:
        clean, spoilt = [
            [one.masked_fill(~mask, fill).float().requires_grad_() for one in inputs] for fill in (0.0, rubbish)
        ]
        expected, found = loss(*clean), loss(*spoilt)
        assert found.item() == expected.item()
        grads = [torch.autograd.grad(value, given[0])[0] for value, given in ((expected, clean), (found, spoilt))]
        assert torch.equal(*grads)
        assert (grads[1][~mask] == 0).all()
        assert (grads[1][mask] != 0).any()


def test_a_minibatch_without_a_token_is_0_of_0_and_may_be_differentiated() -> None:
    logprobs = torch.full((2, 3), NAN, requires_grad=True)
    nothing = torch.zeros(2, 3)
    for total, count in (
        policy_loss(logprobs, nothing, nothing, nothing),
        value_loss(logprobs, nothing, nothing, nothing),
    ):
        total.backward()
        assert (total.item(), count.item()) == (0, 0)
        assert (logprobs.grad == 0).all()


@pytest.mark.parametrize("advantage", [-50.0, 50.0])
def test_extreme_logits_give_finite_losses_and_gradients(advantage: float) -> None:
    logits = torch.tensor([[[1e4, -1e4], [-1e4, 1e4], [3e38, -3e38], [0.0, 0.0], [-INF, 0.0]]], requires_grad=True)
    logprobs = logits.log_softmax(-1)[..., 0]
    old = torch.tensor([[-2e4, 0.0, -INF, -INF, -INF]])
    ones = torch.ones(1, 5)
    total, _ = policy_loss(logprobs, old, advantage * ones, ones)
    estimates = [kl_estimate(logprobs, old, ones, kind) for kind in KINDS]
    for value in (total, *estimates):
        assert value.isfinite()
        [grad] = torch.autograd.grad(value, logprobs, retain_graph=True)
        assert grad.isfinite().all()
    assert estimates[2] > 0
    # rho is clamped at e^20: only what a bad token costs is not clipped
    assert total.abs() <= 50 * 5 * math.exp(20) * 1.001


def test_a_nan_that_counts_is_not_hidden() -> None:
    spoilt, ones = torch.tensor([[NAN, -1.0]]), torch.ones(1, 2)
    assert policy_loss(spoilt, ones, ones, ones)[0].isnan()
    assert value_loss(spoilt, ones, ones, ones)[0].isnan()
    assert kl_estimate(spoilt, ones, ones).isnan()


def test_bf16_inputs_are_computed_in_fp32() -> None:
    logprobs = torch.full((1, 300), -1.0, dtype=torch.bfloat16)
    total, count = policy_loss(logprobs, logprobs, torch.ones_like(logprobs), torch.ones(1, 300))
    assert total.dtype == torch.float32
    assert (total.item(), count.item()) == (-300, 300)  # in bf16 a sum of ones ends at 256
    assert kl_estimate(logprobs, logprobs - 1, torch.ones(1, 300), "k3").dtype == torch.float32


def test_shapes_that_differ_and_unknown_kinds_are_refused() -> None:
    ones, narrow = torch.ones(2, 3), torch.ones(2, 1)
    with pytest.raises(ValueError, match="shapes"):
        policy_loss(ones, ones, narrow, ones)
    with pytest.raises(ValueError, match="shapes"):
        value_loss(ones, ones, ones, narrow)
    with pytest.raises(ValueError, match="shapes"):
        kl_estimate(ones, torch.ones(3), ones)
    with pytest.raises(ValueError, match="k1, k2 or k3"):
        kl_estimate(ones, ones, ones, "k4")
