"""Losses of scorers: against numbers worked out by hand, other formulations in double precision, and their limits."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from scipy.special import expit, log_softmax, xlogy

from reward_models.losses import (
    bradley_terry,
    cross_entropy,
    multi_label_bce,
    plackett_luce,
    regression,
)

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


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# each: the loss, the gradient's input, and the rest, with something missing where the loss knows of that
EXAMPLES: dict[str, tuple[Callable, torch.Tensor, list[torch.Tensor]]] = {
    "plackett_luce": (
        plackett_luce,
        torch.tensor([[0.5, 2.0, -1.0], [3.0, 1.0, 0.0], [1.0, 0.0, 2.0]]),
        [torch.tensor([[2, 1, 2], [1, 2, 3], [1, 2, 3]]), torch.tensor([[1, 1, 1], [1, 0, 1], [0, 0, 0]]).bool()],
    ),
    "cross_entropy": (
        cross_entropy,
        torch.tensor([[0.5, 2.0], [1.0, -1.0], [3.0, 1.0]]),
        [torch.tensor([0, -100, 1])],
    ),
    "multi_label_bce": (
        multi_label_bce,
        torch.tensor([[0.5, 2.0], [1.0, -1.0], [3.0, 1.0]]),
        [torch.tensor([[1.0, math.nan], [0.25, 0.0], [math.nan, math.nan]])],
    ),
    "regression": (regression, torch.tensor([0.5, 2.0, -1.0]), [torch.tensor([1.0, math.nan, 4.0])]),
}
each_loss = pytest.mark.parametrize("name", EXAMPLES)


@each_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_every_loss_gives_an_fp32_sum_and_a_whole_count_and_a_gradient_of_the_scores_own_kind(
    name: str, dtype: torch.dtype
) -> None:
    loss, scores, rest = EXAMPLES[name]
    scores = scores.to(dtype, copy=True).requires_grad_()  # a copy: the example is shared
    total, count = loss(scores, *rest)
    total.backward()
    assert (total.dtype, count.dtype) == (torch.float32, torch.int64)
    assert (total.ndim, count.ndim) == (0, 0)
    assert total.item() == pytest.approx(loss(scores.detach().float(), *rest)[0].item(), rel=1e-7)
    assert scores.grad.dtype == dtype


@each_loss
def test_halves_of_a_batch_add_up_to_the_whole(name: str) -> None:
    loss, scores, rest = EXAMPLES[name]
    whole, count = loss(scores, *rest)
    parts = [loss(*part) for part in zip(*(t.split(2) for t in (scores, *rest)), strict=True)]
    assert sum(part[0] for part in parts).item() == pytest.approx(whole.item(), rel=1e-6)
    assert sum(part[1] for part in parts) == count > 0


@each_loss
def test_the_gradient_is_the_slope_of_the_loss(name: str) -> None:
    loss, scores, rest = EXAMPLES[name]
    scores = scores.clone().requires_grad_()
    loss(scores, *rest)[0].backward()
    for place in range(scores.numel()):
        step = torch.zeros(scores.numel()).index_fill(0, torch.tensor(place), 0.01).view_as(scores)
        ahead, behind = (loss(scores.detach() + sign * step, *rest)[0].item() for sign in (1, -1))
        assert scores.grad.flatten()[place].item() == pytest.approx((ahead - behind) / 0.02, abs=3e-4)


@each_loss
def test_scores_of_ten_thousand_keep_the_loss_and_the_gradient_finite(name: str) -> None:
    loss, scores, rest = EXAMPLES[name]
    for size in (1e4, -1e4):
        large = (scores * size).requires_grad_()
        total, _ = loss(large, *rest)
        total.backward()
        assert torch.isfinite(total)
        assert torch.isfinite(large.grad).all()


@pytest.mark.parametrize(
    ("loss", "scores", "labels"),
    [
        (cross_entropy, normal(3, 4), torch.full((3,), -100)),
        (multi_label_bce, normal(3, 4) * 1e4, torch.full((3, 4), math.nan)),
        (regression, normal(3), torch.full((3,), math.nan)),
        (
            lambda scores, ranks: plackett_luce(scores, ranks, ranks > 0),
            torch.full((3, 4), math.nan),
            torch.zeros(3, 4),
        ),
        (plackett_luce, normal(3, 1), torch.ones(3, 1)),
        (cross_entropy, torch.empty(0, 4), torch.empty(0, dtype=torch.int64)),
        (multi_label_bce, torch.empty(0, 4), torch.empty(0, 4)),
        (regression, torch.empty(0), torch.empty(0)),
        (plackett_luce, torch.empty(0, 4), torch.empty(0, 4)),
        (plackett_luce, torch.empty(2, 0), torch.empty(2, 0)),
    ],
)
def test_a_batch_that_says_nothing_costs_nothing_and_moves_nothing(
    loss: Callable, scores: torch.Tensor, labels: torch.Tensor
) -> None:
    scores = scores.clone().requires_grad_()
    total, count = loss(scores, labels)
    total.backward()
    assert (total.item(), count.item()) == (0.0, 0)
    assert torch.equal(scores.grad, torch.zeros_like(scores))


def test_cross_entropy_gives_the_numbers_worked_out_by_hand() -> None:
    # softmax of (ln 1, ln 3) is (1/4, 3/4): ln 4 + ln(4/3); the row in between is not counted
    logits = torch.tensor([[0.0, math.log(3)], [5.0, 1.0], [0.0, math.log(3)]])
    total, count = cross_entropy(logits, torch.tensor([0, -100, 1]))
    assert total.item() == pytest.approx(1.386294 + 0.287682, abs=1e-6)
    assert count == 2


def test_cross_entropy_equals_scipy_in_double_precision_for_any_integer_type() -> None:
    logits, labels = normal(50, 7) * 5, torch.arange(50) % 7
    expected = -log_softmax(logits.double().numpy(), axis=1)[range(50), labels.numpy()].sum()
    for kind in (torch.int64, torch.int32, torch.uint8):
        assert cross_entropy(logits, labels.to(kind))[0].item() == pytest.approx(expected, rel=1e-6)


def test_regression_gives_the_numbers_worked_out_by_hand() -> None:
    scores = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    total, count = regression(scores, torch.tensor([[0.5, math.nan], [5.0, 4.0]]))
    total.backward()
    assert (total.item(), count.item()) == (0.25 + 4.0, 3)
    assert scores.grad.tolist() == [[1.0, 0.0], [-4.0, 0.0]]


def test_regression_equals_torchs_and_takes_whole_numbers() -> None:
    scores, targets = normal(40), torch.arange(40) % 11 - 3
    total, count = regression(scores, targets)
    assert (total / count).item() == pytest.approx(F.mse_loss(scores.double(), targets.double()).item(), rel=1e-6)


def test_multi_label_bce_gives_the_numbers_worked_out_by_hand() -> None:
    # ln 2 at 0 whatever the label; sigma(ln 3) = 3/4: -ln(3/4), -ln(1/4), and half of each
    logits = torch.tensor([[0.0, math.log(3)], [0.0, math.log(3)], [9.0, math.log(3)]], requires_grad=True)
    labels = torch.tensor([[0.3, 1.0], [math.nan, 0.0], [math.nan, 0.5]])
    total, count = multi_label_bce(logits, labels)
    assert total.item() == pytest.approx(0.693147 + 0.287682 + 1.386294 + 0.836988, abs=1e-6)
    assert count == 4
    weighted, same = multi_label_bce(logits, labels, torch.tensor([2.0, 0.5]))
    assert weighted.item() == pytest.approx(2 * 0.693147 + 0.5 * (0.287682 + 1.386294 + 0.836988), abs=1e-6)
    assert same == 4
    weighted.backward()
    assert logits.grad[1:, 0].tolist() == [0.0, 0.0]
    assert logits.grad[0].tolist() == pytest.approx([2 * 0.2, 0.5 * -0.25])  # weight * (sigma - label)


def test_multi_label_bce_equals_the_definition_in_double_precision_and_torchs_weighted_mean() -> None:
    logits, labels, weights = normal(30, 6) * 3, normal(30, 6, seed=1).sigmoid(), normal(6).exp()
    p, y = expit(logits.double().numpy()), labels.double().numpy()
    assert multi_label_bce(logits, labels)[0].item() == pytest.approx(-(xlogy(y, p) + xlogy(1 - y, 1 - p)).sum())
    total, count = multi_label_bce(logits, labels, weights)
    mean = F.binary_cross_entropy_with_logits(logits, labels, weights)
    assert (total / count).item() == pytest.approx(mean.item(), rel=1e-6)


def test_multi_label_bce_at_ten_thousand_costs_ten_thousand_and_pulls_with_full_force() -> None:
    logits = torch.tensor([[1e4, -1e4, 1e4, -1e4, 1e4]], requires_grad=True)
    total, count = multi_label_bce(logits, torch.tensor([[0.0, 1.0, 1.0, 0.0, math.nan]]))
    total.backward()
    assert (total.item(), count.item()) == (2e4, 4)
    assert logits.grad.tolist() == [[1.0, -1.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("loss", "shapes"),
    [
        (cross_entropy, [(2, 3), (3,)]),
        (cross_entropy, [(2, 3), (2, 3)]),
        (cross_entropy, [(2,), (2,)]),
        (regression, [(2, 1), (2,)]),
        (multi_label_bce, [(2, 3), (2, 1)]),
        (multi_label_bce, [(3,), (3,)]),
        (multi_label_bce, [(2, 3), (2, 3), (1,)]),
        (multi_label_bce, [(2, 3), (2, 3), (2, 3)]),
        (plackett_luce, [(2, 3), (3,)]),
        (plackett_luce, [(3,), (3,)]),
        (plackett_luce, [(2, 3), (2, 3), (2, 1)]),
    ],
)
def test_shapes_that_do_not_fit_are_refused_with_what_was_found(loss: Callable, shapes: list[tuple[int, ...]]) -> None:
    found = ", ".join(str(shape) for shape in shapes).replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(ValueError, match=f"{loss.__name__} takes .*; found {found}"):
        loss(*(torch.ones(shape) for shape in shapes))


@pytest.mark.parametrize(
    ("loss", "labels", "message"),
    [
        (
            cross_entropy,
            [0, 4, 5],
            r"labels holds 2 of 3 values out of range, the first 4 at index \[1\]; needed: 0 to",
        ),
        (cross_entropy, [0, 1, -1], r"1 of 3 .* the first -1 at index \[2\]"),
        (cross_entropy, [0.0, 1.0, 2.0], "labels are torch.float32; needed: integers"),
        (multi_label_bce, [[0.0, 1, 1, math.nan], [0, 1, 1.5, -1], [0, 0, 0, 0]], r"2 of 12 .* 1.5 at index \[1, 2\]"),
        (plackett_luce, [[1, 2, 3, 4], [0, 1, 2, 3], [1, 1, 1, 1]], r"1 of 12 .* the first 0 at index \[1, 0\]"),
        (plackett_luce, [[1.0, math.nan, 3, 4]] * 3, r"3 of 12 .* the first nan at index \[0, 1\]"),
    ],
)
def test_labels_out_of_range_are_counted_and_located(loss: Callable, labels: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loss(torch.zeros(3, 4), torch.tensor(labels))
