"""The loss by a teacher's probabilities against numbers worked out by hand, torch's own, and at the edges of fp32."""

import math

import pytest
import torch
import torch.nn.functional as F

import sft.losses

IGNORED = -100

# probabilities 1/2, 1/4, 1/4 at the first place and 1/10, 1/10, 8/10 at the second; the last place predicts nothing
LOGITS = torch.tensor([[[0.5, 0.25, 0.25], [0.1, 0.1, 0.8], [0.98, 0.01, 0.01]]]).log()


def soft_binary_entropy(logits: torch.Tensor, tokens: torch.Tensor, odds: torch.Tensor) -> sft.losses.SumAndCount:
    """The same with a teacher's probabilities."""
    counts = (tokens[:, 1:] != IGNORED) & (odds[:, 1:] != IGNORED)
    return sft.losses.soft_binary_entropy(logits[:, :-1][counts], tokens[:, 1:][counts], odds[:, 1:][counts])


def test_binary_entropy_is_between_the_targets_probability_and_the_teachers() -> None:
    tokens, odds = torch.tensor([[2, 1, 2]]), torch.tensor([[0.9, 0.3, 0.6]])
    total, count = soft_binary_entropy(LOGITS, tokens, odds)
    first = -(0.3 * math.log(1 / 4) + 0.7 * math.log(3 / 4))
    second = -(0.6 * math.log(8 / 10) + 0.4 * math.log(2 / 10))
    assert total.item() == pytest.approx(first + second, abs=1e-6)
    assert count.item() == 2


@pytest.mark.parametrize("seed", range(3))
def test_it_is_torchs_binary_cross_entropy_of_the_softmax_in_double_precision(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(2, 7, 11, generator=generator) * 3).requires_grad_()
    tokens = torch.randint(11, (2, 7), generator=generator)
    odds = torch.rand(2, 7, generator=generator)
    tokens[0, 3] = IGNORED
    total, count = soft_binary_entropy(logits, tokens, odds)
    total.backward()

    double = logits.detach().double().requires_grad_()
    valid = tokens[:, 1:] != IGNORED
    chosen = double.softmax(-1)[:, :-1].gather(2, tokens[:, 1:].clamp(min=0)[..., None])[..., 0][valid]
    expected = F.binary_cross_entropy(chosen, odds[:, 1:][valid].double(), reduction="sum")
    expected.backward()
    assert count.item() == valid.sum().item() == 11
    assert total.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(logits.grad.double(), double.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [1e4, -1e4])
@pytest.mark.parametrize("target", [0, 1])
@pytest.mark.parametrize("odd", [0.0, 0.25, 1.0])
def test_extreme_logits_give_finite_losses_and_gradients_with_each_logarithm_at_least_minus_100(
    size: float, target: int, odd: float
) -> None:
    logits = torch.tensor([[[size, 0.0, 0.0], [0.0, 0.0, 0.0]]], requires_grad=True)
    total, _ = soft_binary_entropy(logits, torch.tensor([[0, target]]), torch.tensor([[0.0, odd]]))
    total.backward()
    p = {(1e4, 0): 1.0, (1e4, 1): 0.0, (-1e4, 0): 0.0, (-1e4, 1): 0.5}[size, target]
    log_p, log_rest = (max(math.log(x), -100.0) if x else -100.0 for x in (p, 1 - p))
    assert total.item() == pytest.approx(-(odd * log_p + (1 - odd) * log_rest), abs=1e-4)
    assert logits.grad.isfinite().all()


def test_a_probability_that_rounds_to_one_keeps_the_exact_logarithm_of_what_is_left() -> None:
    logits = torch.tensor([[[30.0, 0.0], [0.0, 0.0]]])  # 1 - p = 9e-14 is 0 in fp32, its logarithm is -30
    total, _ = soft_binary_entropy(logits, torch.tensor([[0, 0]]), torch.tensor([[0.0, 0.0]]))
    assert total.item() == pytest.approx(30.0, rel=1e-6)


def test_where_all_is_ignored_sum_count_and_gradients_are_0() -> None:
    logits = torch.full((2, 5, 7), 1e4, requires_grad=True)
    targets = torch.full((2, 5), IGNORED)
    targets[:, 0] = 3  # nothing predicts the first
    total, count = soft_binary_entropy(logits, targets, targets.float())
    total.backward()
    assert (total.item(), count.item()) == (0.0, 0)
    assert torch.equal(logits.grad, torch.zeros_like(logits))
