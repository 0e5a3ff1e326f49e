"""Bradley-Terry: against numbers worked out by hand, another formulation in double precision, and its own limits."""

import math

import pytest
import torch
import torch.nn.functional as F

from reward_models.losses import bradley_terry

CHOSEN, REJECTED = torch.tensor([2.0, 0.0, -1.0]), torch.tensor([0.0, 0.0, 2.0])


def random_scores(seed: int, pairs: int = 200) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    chosen, rejected, margin = torch.randn(3, pairs, generator=generator) * 4
    return chosen, rejected, margin.abs()


def test_three_pairs_give_the_numbers_worked_out_by_hand() -> None:
    # ln(1 + e^-2) + ln 2 + ln(1 + e^3)
    total, count = bradley_terry(CHOSEN, REJECTED)
    assert total.item() == pytest.approx(0.126928 + 0.693147 + 3.048587, abs=1e-6)
    assert count.item() == 3


def test_a_margin_is_taken_off_the_difference() -> None:
    # differences 1, -0.5, -3: ln(1 + e^-1) + ln(1 + e^.5) + ln(1 + e^3)
    total, _ = bradley_terry(CHOSEN, REJECTED, torch.tensor([1.0, 0.5, 0.0]))
    assert total.item() == pytest.approx(0.313262 + 0.974077 + 3.048587, abs=1e-6)


def test_centering_adds_the_squared_sum_of_both_scores() -> None:
    # (2 + 0)^2 + (0 + 0)^2 + (-1 + 2)^2 = 5
    total, _ = bradley_terry(CHOSEN, REJECTED, centering=0.01)
    assert total.item() == pytest.approx(3.868662 + 0.05, abs=1e-6)


def test_the_gradient_of_one_pair_is_minus_the_probability_of_being_wrong() -> None:
    chosen, rejected = torch.tensor([2.0], requires_grad=True), torch.tensor([0.0], requires_grad=True)
    bradley_terry(chosen, rejected)[0].backward()
    assert chosen.grad.item() == pytest.approx(-0.119203, abs=1e-6)  # -sigma(-2)
    assert rejected.grad.item() == pytest.approx(0.119203, abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("with_margin", [False, True])
@pytest.mark.parametrize("centering", [0.0, 0.01])
def test_it_equals_softplus_and_a_double_precision_logarithm(seed: int, with_margin: bool, centering: float) -> None:
    chosen, rejected, margin = random_scores(seed)
    total, count = bradley_terry(chosen, rejected, margin if with_margin else None, centering)
    difference = chosen - rejected - (margin if with_margin else 0.0)
    centre = centering * (chosen + rejected).double().square().sum().item()
    by_hand = sum(math.log1p(math.exp(-d)) for d in difference.double().tolist()) + centre
    assert total.item() == pytest.approx(by_hand, rel=1e-6)
    assert total.item() == pytest.approx(F.softplus(-difference).sum().item() + centre, rel=1e-6)
    assert count == 200


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("centering", [0.0, 0.01])
@pytest.mark.parametrize("size", [100.0, 1e4])
def test_scores_however_large_give_a_finite_loss_and_gradient(
    dtype: torch.dtype, centering: float, size: float
) -> None:
    chosen = torch.tensor([size, -size, size, -size], dtype=dtype, requires_grad=True)
    rejected = torch.tensor([-size, size, size, -size], dtype=dtype, requires_grad=True)
    total, _ = bradley_terry(chosen, rejected, centering=centering)
    total.backward()
    assert torch.isfinite(total)
    assert torch.isfinite(chosen.grad).all()
    assert torch.isfinite(rejected.grad).all()
    # the pair that is wrong by 2 * size costs that much, and pulls with full force
    rounded = 2 * torch.tensor(size, dtype=dtype).float().item()
    centre = centering * 2 * rounded**2
    assert total.item() == pytest.approx(rounded + 2 * math.log(2) + centre, rel=1e-6)
    assert chosen.grad[1].item() == pytest.approx(-1.0)


def test_the_sum_is_fp32_of_low_precision_scores_too() -> None:
    chosen, rejected, _ = random_scores(0)
    low = chosen.bfloat16(), rejected.bfloat16()
    total, count = bradley_terry(*low)
    assert total.dtype == torch.float32
    assert (total.ndim, count.ndim) == (0, 0)
    assert total.item() == pytest.approx(bradley_terry(low[0].float(), low[1].float())[0].item(), rel=1e-7)


def test_sums_of_parts_are_the_sum_of_the_whole() -> None:
    chosen, rejected, margin = random_scores(1)
    whole, count = bradley_terry(chosen, rejected, margin, 0.01)
    parts = [
        bradley_terry(c, r, m, 0.01) for c, r, m in zip(*(t.split(7) for t in (chosen, rejected, margin)), strict=True)
    ]
    assert sum(part[0] for part in parts).item() == pytest.approx(whole.item(), rel=1e-6)
    assert sum(part[1] for part in parts) == count


def test_no_pair_costs_nothing() -> None:
    total, count = bradley_terry(torch.empty(0), torch.empty(0))
    assert (total.item(), count.item()) == (0.0, 0)


@pytest.mark.parametrize(
    "shapes", [[(2,), (3,)], [(2,), (2, 1)], [(2,), ()], [(2,), (2,), (1,)], [(2, 1), (2, 1), (2,)]]
)
def test_shapes_that_would_broadcast_are_refused(shapes: list[tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="one shape; found"):
        bradley_terry(*(torch.zeros(shape) for shape in shapes))
