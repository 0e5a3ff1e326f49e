"""Rewards that are normalised one by one within each group: against a loop and TRL's formula, and equal ones."""

import math
import statistics

import pytest
import torch

from ppo.algorithms.advantages import sum_of_normalized

NAN = math.nan
Table = list[list[float]]


def advantages(rewards: Table, groups: list[int], weights: list[float]) -> list[float]:
    given = torch.tensor(rewards, dtype=torch.float64), torch.tensor(groups), torch.tensor(weights, dtype=torch.float64)
    return sum_of_normalized(*given).tolist()


def by_loop(rewards: Table, groups: list[int], weights: list[float]) -> list[float]:
    """The same, a reply at a time; the first column is what is only centred."""
    totals: list[float] = []
    for row, group in zip(rewards, groups, strict=True):
        total = 0.0
        for k, reward in enumerate(row):
            peers = [r[k] for r, g in zip(rewards, groups, strict=True) if g == group and not math.isnan(r[k])]
            if math.isnan(reward):
                continue
            centred = reward - statistics.fmean(peers)
            spread = statistics.stdev(peers) if len(peers) > 1 else 0.0
            total += centred if k == 0 else weights[k - 1] * centred / (spread + 1e-4)
        totals.append(NAN if math.isnan(row[0]) else total)
    known = [total for total in totals if not math.isnan(total)]
    mean, std = statistics.fmean(known), statistics.stdev(known)
    return [0.0 if math.isnan(total) else (total - mean) / (std + 1e-4) for total in totals]


def by_trl(parts: torch.Tensor, weights: torch.Tensor, size: int) -> torch.Tensor:
    """TRL's `normalize_then_sum` of rewards [n, K] in groups of `size` rows; NaN where a function abstains."""

    def std(values: torch.Tensor, dim: int) -> torch.Tensor:
        count = (~values.isnan()).sum(dim, keepdim=True)
        squares = ((values - values.nanmean(dim, keepdim=True)) ** 2).nansum(dim, keepdim=True)
        return (squares / (count - 1)).sqrt()

    grouped = parts.view(-1, size, parts.shape[1])
    scaled = (grouped - grouped.nanmean(1, keepdim=True)) / (std(grouped, 1) + 1e-4)
    total = (scaled.view(-1, parts.shape[1]) * weights).nansum(1)
    total[parts.isnan().all(1)] = NAN
    return ((total - total.nanmean()) / (std(total, 0) + 1e-4)).nan_to_num(0.0)


def test_two_rewards_of_two_groups_by_hand() -> None:
    # each reward's deviations are -+.5 x, its std .5 x sqrt 2: z is -+1/sqrt 2 whatever its scale
    rewards = [[0.0, 0.0, 100.0], [0.0, 1.0, 0.0], [0.0, 5.0, 7.0], [0.0, 5.0, 7.0]]
    z = 0.5 / (math.sqrt(0.5) + 1e-4)
    large = 50 / (math.sqrt(5000) + 1e-4)
    first = -1.0 * z + 0.5 * large
    totals = [first, -first, 0.0, 0.0]
    std = math.sqrt(2 * first**2 / 3)
    assert advantages(rewards, [0, 0, 1, 1], [1.0, 0.5]) == pytest.approx([t / (std + 1e-4) for t in totals])


@pytest.mark.parametrize("seed", range(5))
def test_random_rewards_equal_a_loop_with_penalties_failures_and_abstentions(seed: int) -> None:
    chance = torch.Generator().manual_seed(seed)
    table = torch.randn(24, 4, generator=chance, dtype=torch.float64) * torch.tensor([0.1, 1.0, 100.0, 0.0])
    table[:, 1:3][torch.rand(24, 2, generator=chance) < 0.2] = NAN
    table[5] = NAN  # failed
    groups = torch.randperm(24, generator=chance) % 5
    weights = [1.0, -0.3, 2.0]
    rewards = table.tolist()
    assert advantages(rewards, groups.tolist(), weights) == pytest.approx(by_loop(rewards, groups.tolist(), weights))


@pytest.mark.parametrize("seed", range(5))
def test_without_other_rewards_it_is_trls_normalize_then_sum(seed: int) -> None:
    chance = torch.Generator().manual_seed(seed)
    parts = torch.randint(0, 4, (32, 3), generator=chance).double() * torch.tensor([1.0, 0.1, 30.0])
    parts[torch.rand(32, generator=chance) < 0.2, 1] = NAN
    parts[3] = NAN  # no function gave one
    weights = torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)
    rest = torch.where(parts.isnan().all(1), NAN, 0.0).double()
    groups = torch.arange(32) // 8
    found = sum_of_normalized(torch.cat([rest[:, None], parts], 1), groups, weights)
    assert torch.allclose(found, by_trl(parts, weights, 8), atol=1e-9, rtol=0)
    assert found[3] == 0


@pytest.mark.parametrize("size", [2, 3, 7])
@pytest.mark.parametrize("constant", [0.1, 1.0, 123456.7, -1e6])
def test_a_constant_reward_gives_0_exactly_and_is_nothing_beside_another(constant: float, size: int) -> None:
    groups = [0] * size + [1] * size
    assert advantages([[0.0, constant]] * 2 * size, groups, [1.0]) == [0.0] * 2 * size
    assert advantages([[constant, constant]] * 2 * size, groups, [1.0]) == [0.0] * 2 * size
    other = [float(i) for i in range(2 * size)]
    beside = advantages([[0.0, constant, x] for x in other], groups, [1.0, 1.0])
    assert beside == advantages([[0.0, x] for x in other], groups, [1.0])
