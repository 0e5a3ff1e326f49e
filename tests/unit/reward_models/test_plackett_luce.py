"""Plackett-Luce: against numbers worked out by hand, every order written out in double precision, and its limits."""

import math
from itertools import chain, permutations, product

import pytest
import torch

from reward_models.losses import bradley_terry, plackett_luce


def random_rankings(seed: int, batch: int = 6, k: int = 6) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores, ranks with ties and gaps, and a mask; what does not exist holds NaN, inf and ranks of 0."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(batch, k, generator=generator) * 3
    # three of each rank at most: 1, 3, 5, ... in random order
    ranks = torch.stack([torch.randperm(3 * k, generator=generator)[:k] // 3 * 2 + 1 for _ in range(batch)])
    mask = torch.rand(batch, k, generator=generator) < 0.8
    rubbish = torch.tensor([math.nan, math.inf, -math.inf])[torch.arange(batch * k).view(batch, k) % 3]
    return torch.where(mask, scores, rubbish), ranks.masked_fill(~mask, 0), mask


def mean_over_orders(scores: torch.Tensor, ranks: list[int]) -> torch.Tensor:
    """Plackett and Luce's definition for one group: every order of the tied written out, the best picked first."""
    ties = [[i for i, rank in enumerate(ranks) if rank == level] for level in sorted(set(ranks))]
    orders = [list(chain(*parts)) for parts in product(*(permutations(tie) for tie in ties))]
    losses = [
        sum(torch.logsumexp(scores[order[j:]], 0) - scores[order[j]] for j in range(len(order))) for order in orders
    ]
    return sum(losses) / len(losses)


def test_plackett_luce_gives_the_numbers_worked_out_by_hand() -> None:
    # strengths 1, 2, 3; the 2 first, then the 3, then the 1: 2/6 * 3/4 = 1/4
    strengths = torch.tensor([[1.0, 2.0, 3.0]]).log()
    total, count = plackett_luce(strengths, torch.tensor([[3, 1, 2]]))
    assert total.item() == pytest.approx(math.log(4), abs=1e-6)
    assert count == 1
    # 3 best, the others tied: 3/6 * 1/3 and 3/6 * 2/3, the mean of ln 6 and ln 3
    total, _ = plackett_luce(strengths, torch.tensor([[2, 2, 1]]))
    assert total.item() == pytest.approx((math.log(6) + math.log(3)) / 2, abs=1e-6)
    # 3 worst, the others tied: 1/6 * 2/5 and 2/6 * 1/4, the mean of ln 15 and ln 12
    total, _ = plackett_luce(strengths, torch.tensor([[1, 1, 2]]))
    assert total.item() == pytest.approx((math.log(15) + math.log(12)) / 2, abs=1e-6)


@pytest.mark.parametrize("k", range(1, 7))
@pytest.mark.parametrize("seed", range(4))
def test_plackett_luce_and_its_gradient_are_the_mean_over_every_order_of_the_tied(k: int, seed: int) -> None:
    scores, ranks, mask = random_rankings(seed, batch=12, k=k)
    ours = scores.clone().requires_grad_()
    total, count = plackett_luce(ours, ranks, mask)
    total.backward()
    exact = scores.double().requires_grad_()
    groups = [(row[m], r[m].tolist()) for row, r, m in zip(exact, ranks, mask, strict=True)]
    expected = sum(mean_over_orders(row, r) for row, r in groups if r)
    expected.backward()
    assert total.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-6)
    assert count == sum(len(r) >= 2 for _, r in groups)
    assert torch.allclose(ours.grad[mask].double(), exact.grad[mask], atol=1e-5)
    assert torch.equal(ours.grad[~mask], torch.zeros_like(ours.grad[~mask]))


def test_four_tied_replies_are_the_mean_of_24_orders_and_five_are_refused() -> None:
    scores = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))
    ranks = [[2, 7, 2, 1, 2, 2], [1, 1, 1, 1, 5, 5]]
    total, _ = plackett_luce(scores, torch.tensor(ranks))
    expected = sum(mean_over_orders(row, r) for row, r in zip(scores.double(), ranks, strict=True))
    assert total.item() == pytest.approx(expected.item(), rel=1e-6)
    ranks[1][4] = 1
    with pytest.raises(ValueError, match="5 replies of one rank in group 1; needed: at most 4 tied"):
        plackett_luce(scores, torch.tensor(ranks))
    masked = torch.tensor([[True] * 6, [False] + [True] * 5])
    assert torch.isfinite(plackett_luce(scores, torch.tensor(ranks), masked)[0])


def test_a_ranking_of_two_is_bradley_terry_and_of_one_nothing() -> None:
    chosen, rejected = torch.randn(2, 200, generator=torch.Generator().manual_seed(3)) * 4
    pairs, ranks = torch.stack([rejected, chosen], -1), torch.tensor([[2, 1]]).expand(200, 2)
    total, count = plackett_luce(pairs, ranks)
    assert total.item() == pytest.approx(bradley_terry(chosen, rejected)[0].item(), rel=1e-6)
    assert count == 200
    total, count = plackett_luce(pairs, ranks, torch.tensor([[True, False]]).expand(200, 2))
    assert (total.item(), count.item()) == (0.0, 0)


def test_gaps_between_ranks_the_order_of_replies_and_a_shift_of_scores_mean_nothing() -> None:
    scores = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    ranks = torch.tensor([1, 1, 2, 3]).expand(5, 4)
    expected = plackett_luce(scores, ranks)[0].item()
    assert plackett_luce(scores, torch.tensor([1, 1, 3, 9]).expand(5, 4))[0].item() == expected
    order = torch.tensor([2, 0, 3, 1])
    assert plackett_luce(scores[:, order], ranks[:, order])[0].item() == pytest.approx(expected, rel=1e-6)
    assert plackett_luce(scores + 64, ranks)[0].item() == pytest.approx(expected, rel=1e-5)


def test_a_ranking_upside_down_by_ten_thousand_costs_that_much_and_pulls_with_full_force() -> None:
    scores = torch.tensor([[-1e4, 1e4, math.nan], [1e4, -1e4, -1e4]], requires_grad=True)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    total, _ = plackett_luce(scores, torch.tensor([[1, 2, 0], [1, 2, 2]]), mask)
    total.backward()
    assert total.item() == pytest.approx(2e4 + math.log(2), rel=1e-6)
    assert scores.grad.tolist() == [[-1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
