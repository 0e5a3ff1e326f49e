"""Advantages from the rewards of whole replies: by hand, beside plain loops, and for groups that are odd."""

import math
import statistics
from collections.abc import Callable

import pytest
import torch

from ppo.algorithms.advantages import best_of_group, dr_grpo, grpo, reinforce_pp, reinforce_pp_baseline, rloo

NAN = math.nan
METHODS = [rloo, grpo, dr_grpo, reinforce_pp, reinforce_pp_baseline]
Rows = list[float]


def advantages(method: Callable, rewards: Rows, groups: list[int], **more) -> Rows:
    return method(torch.tensor(rewards, dtype=torch.float64), torch.tensor(groups), **more).tolist()


def test_a_group_of_four_by_hand() -> None:
    # mean 3, deviations -2 -1 0 3, variance (4 + 1 + 0 + 9) / 3
    rewards, groups, std = [1.0, 2, 3, 6], [7] * 4, math.sqrt(14 / 3)
    assert advantages(rloo, rewards, groups) == pytest.approx([-8 / 3, -4 / 3, 0, 4])  # 1 - (2 + 3 + 6) / 3, ...
    assert advantages(dr_grpo, rewards, groups) == pytest.approx([-2, -1, 0, 3])
    assert advantages(grpo, rewards, groups) == pytest.approx([x / (std + 1e-4) for x in (-2, -1, 0, 3)])


def test_the_best_of_each_group_by_hand() -> None:
    # the median of 1 2 3 6 is 2.5; 5 5 5 has no best; of 0 1 nan the known median is .5
    rewards, groups = [1.0, 2, 3, 6, 5, 5, 5, 0, 1, NAN], [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    found = advantages(best_of_group, rewards, groups, percentile=0.5)
    assert found == pytest.approx([0, 0, 3, 3, 0, 0, 0, 0, 3, 0]), "9 known rewards, 3 of them best"
    assert advantages(best_of_group, [1.0, 2, 3, 6], [0] * 4, percentile=1.0) == [0, 0, 0, 4]
    assert advantages(best_of_group, [1.0, 1, 2], [0] * 3, percentile=0.0) == [0, 0, 3], "the least is never one"
    assert advantages(best_of_group, [NAN, NAN, 4], [0, 0, 1], percentile=0.5) == [0, 0, 0], "nor one that is alone"


def test_two_groups_by_hand() -> None:
    # means 1 and 5, deviations -1 1 -3 3; of all four rewards the mean is 3, the deviations -3 -1 -1 5
    rewards, groups = [0.0, 2, 2, 8], [0, 0, 1, 1]
    of_all, centred = math.sqrt((9 + 1 + 1 + 25) / 3) + 1e-4, math.sqrt((1 + 1 + 9 + 9) / 3) + 1e-4
    assert advantages(reinforce_pp, rewards, groups) == pytest.approx([x / of_all for x in (-3, -1, -1, 5)])
    assert advantages(reinforce_pp_baseline, rewards, groups) == pytest.approx([x / centred for x in (-1, 1, -3, 3)])
    assert advantages(grpo, rewards, groups, scale="batch") == pytest.approx([x / of_all for x in (-1, 1, -3, 3)])
    assert advantages(grpo, rewards, groups, scale="none") == advantages(dr_grpo, rewards, groups)


def by_loop(name: str, rewards: Rows, groups: list[int]) -> Rows:
    """The same, one reward at a time."""
    found = []
    known = [r for r in rewards if not math.isnan(r)]
    centred = []
    for reward, group in zip(rewards, groups, strict=True):
        peers = [r for r, g in zip(rewards, groups, strict=True) if g == group and not math.isnan(r)]
        centred.append(NAN if math.isnan(reward) else reward - statistics.fmean(peers))
    for i, (reward, group) in enumerate(zip(rewards, groups, strict=True)):
        peers = [r for r, g in zip(rewards, groups, strict=True) if g == group and not math.isnan(r)]
        if math.isnan(reward):
            found.append(0.0)
        elif name == "rloo":
            others = list(peers)
            others.remove(reward)
            found.append(reward - statistics.fmean(others) if others else 0.0)
        elif name == "grpo":
            spread = statistics.stdev(peers) if len(peers) > 1 else 0.0
            found.append((reward - statistics.fmean(peers)) / (spread + 1e-4))
        elif name == "dr_grpo":
            found.append(reward - statistics.fmean(peers))
        elif name == "reinforce_pp":
            found.append((reward - statistics.fmean(known)) / (statistics.stdev(known) + 1e-4))
        else:
            others = [x for x in centred if not math.isnan(x)]
            found.append((centred[i] - statistics.fmean(others)) / (statistics.stdev(others) + 1e-4))
    return found


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("method", METHODS)
def test_a_loop_over_replies_agrees_for_groups_of_unequal_length_in_any_order(method: Callable, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    groups = torch.randint(6, (40,), generator=generator)
    rewards = torch.randn(40, generator=generator, dtype=torch.float64)
    rewards[torch.rand(40, generator=generator) < 0.1] = NAN  # failed
    found = method(rewards, groups).tolist()
    assert found == pytest.approx(by_loop(method.__name__, rewards.tolist(), groups.tolist()))


@pytest.mark.parametrize("method", METHODS)
def test_odd_groups_give_finite_advantages(method: Callable) -> None:
    equal = advantages(method, [0.5] * 4, [0] * 4)
    assert equal == pytest.approx([0.0] * 4), "nothing is better than anything else"
    failed = advantages(method, [1.0, NAN, 0.0, NAN], [0, 0, 0, 1])
    assert failed[1] == failed[3] == 0
    assert failed[0] == -failed[2] > 0
    assert advantages(method, [NAN, NAN], [0, 0]) == [0.0, 0.0]
    assert advantages(method, [], []) == []
    alone = advantages(method, [2.0, 7.0, 1.0], [0, 1, 1])
    assert all(map(math.isfinite, alone))
    if method is not reinforce_pp:
        assert alone[0] == pytest.approx(0.0), "alone in its group"


@pytest.mark.parametrize("method", METHODS)
def test_rewards_that_are_not_a_row_are_refused(method: Callable) -> None:
    with pytest.raises(ValueError, match=r"\[n\] both"):
        method(torch.ones(4), torch.ones(3))
    with pytest.raises(ValueError, match=r"\[n\] both"):
        method(torch.ones(2, 2), torch.ones(2, 2))
