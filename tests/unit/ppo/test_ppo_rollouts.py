"""Samples laid out for learning: where scores land, what is masked, and which episodes a minibatch holds."""

import numpy as np
import pytest
import torch

from lmgym.environments.episodes import Episode, Step
from lmgym.environments.scored_chat import ScoredChat
from lmgym.errors import InputError, RunStopped
from lmgym.generation.protocol import Completion, ScriptedGenerator
from ppo.config import CriticConfig, PPOConfig, RewardConfig
from ppo.monitoring.metrics import episode_sums
from ppo.rollouts import Rollouts, RowBatch, complete, gather, minibatches, refuse_idle_agents
from ppo.setup import make_estimator
from ppo.task_setups import TaskSetup


def step(ids: int, reward, reason: str = "eos", prompt: int = 3) -> Step:
    """A reply of so many ids to a prompt of so many."""
    said = Completion("", reason, tuple(range(10, 10 + ids)), tuple(-0.1 * i for i in range(ids)), ids)  # type: ignore[arg-type]
    return Step(list(range(prompt)), "", said, reward)


def episode(*steps: Step, final: list[int] | None = None) -> Episode:
    return Episode(0, "policy", list(steps), final is None, final is not None, final, {})


def test_a_score_lands_on_the_last_token_of_its_reply_and_dense_ones_on_each() -> None:
    found = gather([episode(step(3, 2.0), step(1, -1.0)), episode(step(2, (0.5, 0.25)))], RewardConfig())
    assert found.scores.tolist() == [0.0, 0.0, 2.0, -1.0, 0.5, 0.25]
    assert found.rows[0] == [0, 1, 2, 10, 11, 12]
    assert found.episode_of_row.tolist() == [0, 0, 1]
    assert found.mask.tolist() == [[True] * 4, [True, True, False, False]]
    assert found.padded(found.scores).tolist() == [[0.0, 0.0, 2.0, -1.0], [0.5, 0.25, 0.0, 0.0]]
    assert found.flat(found.padded(found.scores)).tolist() == found.scores.tolist()
    batch = RowBatch.of(found, np.array([2, 1]), torch.device("cpu"))
    assert (batch.targets.tolist(), batch.tokens.tolist()) == ([10, 11, 10], [4, 5, 3])


def filled(episodes: list[Episode]) -> Rollouts:
    """With log-probabilities and values as if they had been computed."""
    found = gather(episodes, RewardConfig())
    tokens = len(found.scores)
    found.old_logprobs, found.reference_logprobs = torch.zeros(tokens), torch.zeros(tokens)
    found.values = torch.linspace(-1, 1, tokens)
    found.bootstrap = torch.zeros(found.episodes)
    return found


def test_an_episode_whose_reward_failed_has_no_loss_and_no_part_in_the_whitening() -> None:
    config = PPOConfig("x", critic=CriticConfig(lam=1.0))
    known = [episode(step(2, 1.0)), episode(step(3, -1.0))]
    # a huge value in the failed one would move the mean
    both = filled([*known, episode(step(2, 5.0), step(1, None))])
    alone = filled(known)
    both.values = torch.cat([alone.values, torch.full((3,), 100.0)])
    assert both.has_reward.tolist() == [True, True, False]
    assert both.loss_mask.tolist() == [True] * 5 + [False] * 3
    make_estimator(config)(both, 0.0)
    make_estimator(config)(alone, 0.0)
    assert both.advantages[:5].tolist() == pytest.approx(alone.advantages.tolist())
    assert alone.advantages.mean().item() == pytest.approx(0, abs=1e-6)
    assert alone.advantages.std(correction=0).item() == pytest.approx(1, abs=1e-5)


def test_the_value_after_a_truncated_episode_reaches_its_advantages() -> None:
    config = PPOConfig("x", critic=CriticConfig(gamma=0.5, lam=1.0, whiten=False))
    found = filled([episode(step(2, 0.0), final=[1, 2]), episode(step(2, 0.0))])
    assert found.final_rows == [[1, 2]]
    assert found.final_episodes.tolist() == [0]
    found.values = torch.zeros(4)
    found.bootstrap = torch.tensor([8.0, 0.0])
    make_estimator(config)(found, 0.0)
    assert found.advantages.tolist() == [2.0, 4.0, 0.0, 0.0]
    assert found.returns.tolist() == [2.0, 4.0, 0.0, 0.0]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_minibatches_hold_the_same_episodes_however_many_ranks_share_them(ranks: int) -> None:
    episodes, batch, chance = 24, 8, (5, 3, 1)
    alone = [set(found.tolist()) for found in minibatches(episodes, batch, 0, 1, chance)]
    shared = [
        # episode i of rank r is number i * ranks + r of all
        [{int(i) * ranks + rank for i in found} for found in minibatches(episodes // ranks, batch, rank, ranks, chance)]
        for rank in range(ranks)
    ]
    together = [set().union(*of_slot) for of_slot in zip(*shared, strict=True)]
    assert together == alone
    assert [len(found) for found in alone] == [batch] * 3


def test_an_agent_that_did_not_act_has_a_masked_episode_without_rows_in_that_game() -> None:
    """Of two negotiations the second ended before its judge spoke; the third failed at its beginning."""
    played = [
        *(Episode(0, agent, [step(1, 1.0)], True, False, None, {}) for agent in ("buyer", "judge")),
        Episode(1, "buyer", [step(1, 1.0), step(1, 1.0)], True, False, None, {}),
        Episode(2, "", [], True, False, None, {}, error="episode 2: KeyError"),
    ]  # fmt: skip
    found = complete(played, 3, 2)
    assert [(e.index, e.agent, len(e.steps), e.is_absent, e.failure) for e in found] == [
        (0, "buyer", 1, False, ""), (0, "judge", 1, False, ""), (1, "buyer", 2, False, ""), (1, "judge", 0, True, ""),
        (2, "buyer", 0, False, "episode 2: KeyError"), (2, "judge", 0, False, "episode 2: KeyError"),
    ]  # fmt: skip
    sums = episode_sums(found)
    assert sums["rollout/absent_agents"] == (1, 6)
    assert sums["rollout/failed_episodes"] == (1, 3)
    assert sums["rollout/failed_rewards"] == (2, 5)
    assert sums["rollout/turns"] == (4, 3)
    rollouts = gather(found, RewardConfig())
    assert rollouts.has_reward.tolist() == [True, True, True, False, False, False]
    assert rollouts.episode_of_row.tolist() == [0, 1, 2, 2]
    assert rollouts.mask.sum(1).tolist() == [1, 1, 2, 0, 0, 0]


def test_an_agent_that_acts_in_no_game_is_masked_in_all_and_one_in_different_seats_is_one() -> None:
    alone = [Episode(i, "buyer", [step(1, 1.0)], True, False, None, {}) for i in range(2)]
    assert [(e.agent, e.is_absent) for e in complete(alone, 2, 2)] == [("buyer", False), ("agent 2", True)] * 2
    seats = [
        Episode(0, "first", [step(1, 1.0)], True, False, None, {}),
        Episode(1, "second", [step(1, 1.0)], True, False, None, {}),
    ]
    assert complete(seats, 2, 1) == seats


def test_more_agents_in_a_game_than_are_trained_are_refused_and_so_is_an_iteration_without_a_reply() -> None:
    both = [Episode(0, agent, [step(1, 1.0)], True, False, None, {}) for agent in ("left", "right")]
    with pytest.raises(InputError, match=r"2 agents .*\(left, right\), and trained_agents=1; .*trained_agents=2"):
        complete(both, 1, 1)
    with pytest.raises(RunStopped, match="an iteration has no reply of the policy: episode 0: KeyError"):
        complete([Episode(0, "", [], True, False, None, {}, error="episode 0: KeyError")], 1, 1)


def test_agents_that_act_in_no_game_are_refused_by_name_and_those_that_act_in_one_are_not() -> None:
    def setup(trained_agents: int, *players: str) -> TaskSetup:
        named = {name: ScriptedGenerator(["hello"]) for name in players}
        return TaskSetup([{}], [{}], ScoredChat, None, "x", players=named, trained_agents=trained_agents)

    def game(index: int, agent: str, *others: str, unclaimed: tuple[str, ...] = ()) -> Episode:
        said = [dict.fromkeys((agent, *others), "5")]
        return Episode(index, agent, [step(1, 1.0)], True, False, None, {}, actions=said, unclaimed=unclaimed)

    settled, judged = game(0, "buyer", "seller", unclaimed=("judge",)), game(1, "judge", "buyer", "seller")
    refuse_idle_agents([settled, judged], setup(2, "seller"))
    with pytest.raises(
        InputError, match=r"the agent 'judge' has a reward and acts in no game .* where buyer, seller act"
    ):
        refuse_idle_agents([settled], setup(1, "seller"))
    with pytest.raises(InputError, match="the agent 'seler' is one of `players` and acts in no game"):
        refuse_idle_agents([settled, judged], setup(2, "seler"))
    with pytest.raises(
        InputError, match="trained_agents=3, and in the first iteration only buyer, judge acted; needed"
    ):
        refuse_idle_agents([settled, judged], setup(3))


def test_the_numbers_that_a_game_logs_count_once_however_many_agents_acted() -> None:
    info = [{"settled": 0.0}, {"settled": 1.0}]
    judged = [Episode(0, agent, [step(1, 1.0)], True, False, None, info[0]) for agent in ("buyer", "judge")]
    settled = Episode(1, "buyer", [step(1, 1.0)], True, False, None, info[1])
    assert episode_sums(complete([*judged, settled], 2, 2))["episode/settled"] == (1.0, 2)
