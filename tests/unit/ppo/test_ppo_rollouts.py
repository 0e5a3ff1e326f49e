"""What is sampled, laid out for learning: where scores land, what is masked, and which episodes a minibatch holds."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lmgym.config import OptimizerConfig
from lmgym.environments.episodes import Episode, Step
from lmgym.errors import InputError
from lmgym.generation.protocol import Completion
from ppo.algorithms.learning import advantage_estimator
from ppo.config import CriticConfig, PPOConfig, RewardConfig, RolloutConfig
from ppo.rollouts import Rollouts, RowBatch, gather, minibatches, similar_batches
from ppo.train import refuse_uneven


def step(ids: int, reward, reason: str = "eos", prompt: int = 3) -> Step:
    """A reply of so many ids to a prompt of so many."""
    said = Completion("", reason, tuple(range(10, 10 + ids)), tuple(-0.1 * i for i in range(ids)), ids)  # type: ignore[arg-type]
    return Step(list(range(prompt)), "", said, reward)


def episode(*steps: Step, final: list[int] | None = None) -> Episode:
    return Episode(0, "policy", list(steps), final is None, final is not None, final, {})


def test_a_score_lands_on_the_last_token_of_its_reply_and_dense_ones_on_each() -> None:
    found = gather([episode(step(3, 2.0), step(1, -1.0)), episode(step(2, (0.5, 0.25)))], PPOConfig("x"))
    assert found.scores.tolist() == [0.0, 0.0, 2.0, -1.0, 0.5, 0.25]
    assert found.rows[0] == [0, 1, 2, 10, 11, 12]
    assert found.episode_of_row.tolist() == [0, 0, 1]
    assert found.mask.tolist() == [[True] * 4, [True, True, False, False]]
    assert found.padded(found.scores).tolist() == [[0.0, 0.0, 2.0, -1.0], [0.5, 0.25, 0.0, 0.0]]
    assert found.flat(found.padded(found.scores)).tolist() == found.scores.tolist()
    batch = RowBatch.of(found, np.array([2, 1]), torch.device("cpu"))
    assert batch.targets.tolist() == [10, 11, 10]
    assert found.token_indices(np.array([2, 1])).tolist() == [4, 5, 3]


def test_rewards_are_cut_and_a_reply_that_did_not_end_pays_after_that() -> None:
    config = PPOConfig("x", reward=RewardConfig(missing_eos_penalty=0.5, cliprange_reward=10.0))
    found = gather([episode(step(2, 50.0)), episode(step(2, -50.0, "length")), episode(step(1, 1.0, "length"))], config)
    assert found.scores.tolist() == [0.0, 10.0, 0.0, -10.5, 0.5]


def filled(episodes: list[Episode]) -> Rollouts:
    """With log-probabilities and values as if they had been computed."""
    found = gather(episodes, PPOConfig("x"))
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
    advantage_estimator(config)(both, 0.0)
    advantage_estimator(config)(alone, 0.0)
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
    advantage_estimator(config)(found, 0.0)
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


def test_every_episode_comes_once_an_epoch_in_an_order_of_its_own() -> None:
    orders = [np.concatenate(minibatches(24, 8, 0, 1, (0, 0, epoch))).tolist() for epoch in range(4)]
    assert all(sorted(order) == list(range(24)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    again = np.concatenate(minibatches(24, 8, 0, 1, (0, 0, 2))).tolist()
    assert again == orders[2]
    first = [set(np.asarray(minibatches(24, 8, 0, 1, (seed, 0, 0))[0]).tolist()) for seed in range(20)]
    assert len(set(map(frozenset, first))) > 10, "who is together changes too"


def test_batches_of_similar_length_hold_each_row_once_and_ranks_have_as_many(monkeypatch) -> None:
    monkeypatch.setattr("ppo.rollouts.max_over_ranks", lambda batches: batches + 1)  # another rank has one more
    found = similar_batches([3, 9, 1, 9, 4], 2)
    assert [batch.tolist() for batch in found] == [[1, 3], [4, 0], [2], []]


def test_episodes_that_fill_no_minibatch_are_refused() -> None:
    config = PPOConfig(name="uneven", optimizer=OptimizerConfig(global_batch=8))
    config = replace(config, rollout=RolloutConfig(num_rollouts=16))
    refuse_uneven(config, 16, 1)
    refuse_uneven(config, 32, 2)
    with pytest.raises(
        InputError, match="gave 12 episodes on its ranks, where 16 games were played; needed: one episode per"
    ):
        refuse_uneven(config, 12, 1)
    with pytest.raises(InputError, match=r"trained_agents=1: .* set TaskSetup\(trained_agents=2\)"):
        refuse_uneven(config, 32, 1)
