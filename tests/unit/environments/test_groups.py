"""Groups of episodes: whole on a rank where that is possible, the same on any number of ranks, and their rewards."""

import math

import numpy as np
import pytest

from lmgym.environments import groups as grouping
from lmgym.environments.episodes import Episode, Step
from lmgym.environments.groups import Share, groups_of_equal_rewards, number_groups, reward_spread, share_of_rank
from lmgym.generation.protocol import Completion

TASKS = [{"number": i} for i in range(11)]


def on_ranks(monkeypatch, ranks: int, members: int, episodes: int = 24, **more) -> list[Share]:
    found = []
    for number in range(ranks):
        monkeypatch.setattr(grouping, "rank", lambda number=number: number)
        monkeypatch.setattr(grouping, "world_size", lambda: ranks)
        found.append(share_of_rank(TASKS, episodes, members, 3, 5, **more))
    return found


def entries(share: Share) -> list[tuple]:
    return list(zip([t["number"] for t in share.tasks], share.seeds, share.groups, share.members, strict=True))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("members", [1, 2, 4, 8])
def test_however_many_ranks_share_them_the_same_episodes_are_played(monkeypatch, ranks: int, members: int) -> None:
    shares = on_ranks(monkeypatch, ranks, members)
    whole = entries(on_ranks(monkeypatch, 1, members)[0])
    assert sorted(e for share in shares for e in entries(share)) == sorted(whole)
    assert len(set(whole)) == 24, "no reply is played twice"
    for group in range(24 // members):
        of_group = [e for e in whole if e[2] == group]
        assert len({e[:2] for e in of_group}) == 1, "one task with one seed"
        assert sorted(e[3] for e in of_group) == list(range(members))
        if 24 // members % ranks == 0:
            assert sum(group in share.groups for share in shares) == 1, "whole on one rank"


def test_a_refill_has_other_tasks_and_seeds_and_is_the_same_each_time(monkeypatch) -> None:
    [first], [again], [other] = (on_ranks(monkeypatch, 1, 8, refill=refill) for refill in (1, 1, 2))
    [own] = on_ranks(monkeypatch, 1, 8)
    assert entries(first) == entries(again)
    assert not set(own.seeds) & set(first.seeds)
    assert not set(first.seeds) & set(other.seeds)


def test_tasks_that_belong_together_are_played_in_one_iteration_in_random_order_of_pairs(monkeypatch) -> None:
    tasks = [{"pair": n // 2, "order": n % 2} for n in range(20)]
    monkeypatch.setattr(grouping, "rank", lambda: 0)
    monkeypatch.setattr(grouping, "world_size", lambda: 1)
    seen = []
    for iteration in range(5):
        own = share_of_rank(tasks, 8, 2, iteration, 7, together=2).tasks[:4]
        assert [task["order"] for task in own] == [0, 1, 0, 1]
        assert [own[0]["pair"], own[2]["pair"]] == [own[1]["pair"], own[3]["pair"]]
        seen += [own[0]["pair"], own[2]["pair"]]
    assert sorted(seen) == list(range(10)) != seen


def played(index: int, reward: float | None, agent: str = "policy") -> Episode:
    step = Step([1], "", Completion("", "eos", (2,), (-1.0,), 1), reward)
    return Episode(index, agent, [step], True, False, None, {})


def test_groups_with_equal_rewards_are_found() -> None:
    rewards: list[float | None] = [1.0, 1.0, 0.0, 1.0, None, 0.5, None, None]
    episodes = [played(i, reward) for i, reward in enumerate(rewards)]
    assert groups_of_equal_rewards(episodes, [0, 0, 1, 1, 2, 2, 3, 3]) == {0, 2, 3}


def test_a_game_in_which_one_agent_has_two_rewards_is_not_equal() -> None:
    episodes = [played(i, 1.0 + i * (agent == "b"), agent) for i in (0, 1) for agent in ("a", "b")]
    assert groups_of_equal_rewards(episodes, [0, 0]) == set()
    assert number_groups(episodes, [0, 0]).tolist() == [0, 1, 0, 1], "each agent is compared with itself"


def test_the_spread_by_hand() -> None:
    # deviations of 1 and 0; the third group has one reward, the failed ones count nowhere
    rewards: list[float | None] = [0.0, math.sqrt(2.0), 3.0, 3.0, 9.0, None]
    episodes = [played(i, reward) for i, reward in enumerate(rewards)]
    found = reward_spread(episodes, number_groups(episodes, [0, 0, 1, 1, 2, 2]))
    assert found == {"groups/reward_std": pytest.approx(1 / 3), "groups/equal_rewards": pytest.approx(2 / 3)}
    tenths = [played(i, 0.1) for i in range(6)]
    assert np.mean([0.1] * 6) != 0.1, "the mean of equal numbers is rounded"
    assert reward_spread(tenths, number_groups(tenths, [0] * 6))["groups/equal_rewards"] == 1
    failed = [played(0, None)]
    assert reward_spread(failed, number_groups(failed, [0])) == {}
