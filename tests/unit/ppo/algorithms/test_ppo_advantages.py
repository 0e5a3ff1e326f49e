"""KL rewards, GAE, whitening, running moments and the KL coefficient: by hand, and against slow formulations."""

import json
import math

import pytest
import torch

from lmgym.scoring.moments import RunningMoments, moments_of
from ppo.algorithms.advantages import gae, masked_sums, whiten
from ppo.algorithms.kl import AdaptiveKL, kl_rewards

NAN, INF = float("nan"), float("inf")


def random_batch(
    seed: int, batch: int = 6, time: int = 9
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rewards, values, a mask with holes at either end and within, and values after the end."""
    generator = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(2, batch, time, generator=generator, dtype=torch.float64)
    mask = torch.rand(batch, time, generator=generator) < 0.6
    mask[:, 2] = True
    return rewards, values, mask, torch.randn(batch, generator=generator, dtype=torch.float64)


def slow_gae(rewards: list[float], values: list[float], gamma: float, lam: float, after: float) -> list[float]:
    """The definition, for one row of unmasked tokens: the sum over k of (gamma lam)^k delta_{t + k}."""
    ahead = [*values[1:], after]
    deltas = [r + gamma * b - v for r, v, b in zip(rewards, values, ahead, strict=True)]
    return [sum((gamma * lam) ** k * d for k, d in enumerate(deltas[t:])) for t in range(len(deltas))]


def test_three_tokens_have_the_advantages_worked_out_by_hand() -> None:
    # deltas from the right: 1 - .5 = .5; 0 + .5 - .4 = .1; 0 + .4 - .2 = .2
    # A3 = .5; A2 = .1 + .5 * .5 = .35; A1 = .2 + .5 * .35 = .375
    advantages, returns = gae(
        torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.2, 0.4, 0.5]]), torch.ones(1, 3), gamma=1.0, lam=0.5
    )
    assert advantages[0].tolist() == pytest.approx([0.375, 0.35, 0.5])
    assert returns[0].tolist() == pytest.approx([0.575, 0.75, 1.0])


def test_a_discount_counts_tokens_and_the_value_after_a_truncated_episode() -> None:
    # gamma .9, lam .5, bootstrap 2: delta2 = 1 + 1.8 - .5 = 2.3; delta1 = 0 + .45 - .4 = .05; A1 = .05 + .45 * 2.3
    rewards, values = torch.tensor([[0.0, 1.0]] * 2), torch.tensor([[0.4, 0.5]] * 2)
    advantages, _ = gae(rewards, values, torch.ones(2, 2), 0.9, 0.5, bootstrap=torch.tensor([2.0, 0.0]))
    assert advantages[0].tolist() == pytest.approx([1.085, 2.3])
    # of an episode that ended: delta2 = .5, A1 = .05 + .45 * .5
    assert advantages[1].tolist() == pytest.approx([0.275, 0.5])


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.8), (1.0, 1.0), (0.99, 0.0)])
def test_every_row_has_the_advantages_of_its_own_tokens_alone(seed: int, gamma: float, lam: float) -> None:
    rewards, values, mask, after = random_batch(seed)
    advantages, returns = gae(rewards, values, mask, gamma, lam, after)
    for row in range(len(mask)):
        here = mask[row]
        expected = slow_gae(rewards[row][here].tolist(), values[row][here].tolist(), gamma, lam, after[row].item())
        assert advantages[row][here].tolist() == pytest.approx(expected, abs=1e-12)
        assert returns[row][here].tolist() == pytest.approx(
            [a + v for a, v in zip(expected, values[row][here].tolist(), strict=True)], abs=1e-12
        )


@pytest.mark.parametrize("rubbish", [NAN, INF, -INF, 1e30])
def test_what_stands_at_masked_places_changes_nothing(rubbish: float) -> None:
    rewards, values, mask, after = random_batch(3)
    clean = gae(rewards, values, mask, 0.9, 0.8, after)
    spoilt = gae(rewards.masked_fill(~mask, rubbish), values.masked_fill(~mask, rubbish), mask, 0.9, 0.8, after)
    for found, expected in zip(spoilt, clean, strict=True):
        assert torch.equal(found, expected)
        assert (found[~mask] == 0).all()


def test_a_row_without_tokens_is_0_beside_rows_with_some() -> None:
    mask = torch.tensor([[1, 1], [0, 0]])
    advantages, returns = gae(torch.ones(2, 2), torch.ones(2, 2), mask, bootstrap=torch.tensor([0.0, 5.0]))
    assert advantages[1].tolist() == returns[1].tolist() == [0, 0]
    assert advantages[0].tolist() == pytest.approx([1.0, 0.0])  # the deltas are 1 + 1 - 1 and 1 + 0 - 1


def test_gae_keeps_float64_widens_bf16_and_carries_no_gradient() -> None:
    values = torch.ones(1, 2, dtype=torch.bfloat16, requires_grad=True)
    advantages, returns = gae(torch.ones(1, 2, dtype=torch.bfloat16), values, torch.ones(1, 2))
    assert advantages.dtype == returns.dtype == torch.float32
    assert not returns.requires_grad
    assert gae(*random_batch(0)[:3])[0].dtype == torch.float64


def test_shapes_that_differ_and_empty_masks_are_refused() -> None:
    ones = torch.ones(2, 3)
    with pytest.raises(ValueError, match=r"\[\[2, 3\], \[2, 1\], \[2, 3\]\]"):
        gae(ones, torch.ones(2, 1), ones)
    with pytest.raises(ValueError, match=r"needed: \[batch, time\]"):
        gae(torch.ones(3), torch.ones(3), torch.ones(3))
    with pytest.raises(ValueError, match="without a token"):
        gae(ones, ones, torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"bootstrap of shape \[3\]"):
        gae(ones, ones, ones, bootstrap=torch.ones(3))
    with pytest.raises(ValueError, match="moments"):
        whiten(ones, torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"scores of shape \[3\]"):
        kl_rewards(ones, ones, torch.ones(3), ones, 0.1)
    with pytest.raises(ValueError, match="shapes"):
        kl_rewards(ones, torch.ones(2, 1), torch.ones(2), ones, 0.1)


def test_the_score_lands_on_the_last_sampled_token_of_each_row_and_the_kl_on_all() -> None:
    logprobs = torch.tensor([[-1.0, -2.0, -3.0, -9.0], [-1.0, -9.0, -1.0, -2.0], [-9.0, -1.0, -9.0, -9.0]])
    reference = torch.tensor([[-1.5, -1.0, -3.0, -4.0], [-2.0, -4.0, -1.0, -4.0], [-4.0, -3.0, -4.0, -4.0]])
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 1, 1], [0, 1, 0, 0]], dtype=torch.bool)
    rewards = kl_rewards(logprobs, reference, torch.tensor([10.0, 20.0, 30.0]), mask, kl_coef=0.1)
    # log ratios .5 -1 0 | 1 0 2 | 2
    expected = [[-0.05, 0.1, 10.0, 0.0], [-0.1, 0.0, 0.0, 19.8], [0.0, 29.8, 0.0, 0.0]]
    torch.testing.assert_close(rewards, torch.tensor(expected))


def test_dense_scores_stand_at_their_tokens_and_none_at_masked_ones() -> None:
    logprobs, reference = torch.tensor([[-1.0, -1.0, -1.0]]), torch.tensor([[-2.0, -1.0, -1.0]])
    mask, scores = torch.tensor([[True, False, True]]), torch.tensor([[1.0, NAN, 3.0]])
    assert kl_rewards(logprobs, reference, scores, mask, 0.5)[0].tolist() == pytest.approx([0.5, 0.0, 3.0])


def test_a_row_without_tokens_has_no_reward_whatever_its_score() -> None:
    mask = torch.tensor([[True, True], [False, False]])
    rewards = kl_rewards(torch.zeros(2, 2), torch.zeros(2, 2), torch.tensor([1.0, NAN]), mask, 0.1)
    assert rewards.tolist() == [[0.0, 1.0], [0.0, 0.0]]


@pytest.mark.parametrize("rubbish", [NAN, INF, -INF])
def test_log_probs_at_masked_places_are_not_looked_at(rubbish: float) -> None:
    mask = torch.tensor([[False, True, False]])
    spoilt = torch.tensor([[rubbish, -1.0, rubbish]])
    rewards = kl_rewards(spoilt, torch.tensor([[0.0, -3.0, rubbish]]), torch.tensor([1.0]), mask, 0.5)
    assert rewards.tolist() == [[0.0, 0.0, 0.0]]


def test_impossible_tokens_give_finite_rewards() -> None:
    mask = torch.ones(1, 2, dtype=torch.bool)
    rewards = kl_rewards(torch.tensor([[-1.0, -INF]]), torch.tensor([[-INF, -INF]]), torch.zeros(1), mask, 0.1)
    assert rewards.isfinite().all()
    assert rewards[0, 1] == 0


def test_whitening_by_hand() -> None:
    values, mask = torch.tensor([[1.0, 3.0, 100.0], [5.0, 7.0, NAN]]), torch.tensor([[1, 1, 0], [1, 1, 0]])
    # mean 4, variance (9 + 1 + 1 + 9) / 4 = 5
    expected = torch.tensor([[-3.0, -1.0, 0.0], [1.0, 3.0, 0.0]]) / math.sqrt(5)
    torch.testing.assert_close(whiten(values, mask), expected)
    kept = whiten(values, mask, shift_mean=False)
    torch.testing.assert_close(kept, expected + 4 * mask)


def test_two_ranks_that_add_up_their_sums_whiten_as_one() -> None:
    values, _, mask, _ = random_batch(1)
    values, whole = values.float(), whiten(values.float(), mask)
    parts = slice(0, 2), slice(2, 6)
    moments = moments_of(sum(masked_sums(values[part], mask[part]) for part in parts))
    found = torch.cat([whiten(values[part], mask[part], moments=moments) for part in parts])
    torch.testing.assert_close(found, whole)
    assert not torch.allclose(whiten(values[:2], mask[:2]), whole[:2])  # a rank alone has other moments
    assert (whiten(values[:2], torch.zeros(2, 9), moments=moments) == 0).all()  # and may hold no token at all


def test_equal_values_whiten_to_0() -> None:
    assert whiten(torch.full((3, 4), 1000.1), torch.ones(3, 4)).abs().max() == 0


def test_running_moments_are_those_of_all_values_in_whatever_batches() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(1000, generator=generator) * 0.01 + 1e4
    moments = RunningMoments()
    for batch in values.split([1, 2, 500, 0, 497]):
        moments.update(batch)
    assert moments.count == 1000
    assert moments.mean == pytest.approx(values.double().mean().item(), rel=1e-12)
    assert moments.std == pytest.approx(values.double().std(correction=0).item(), rel=1e-5)


def test_running_moments_by_hand() -> None:
    moments = RunningMoments()
    assert (moments.mean, moments.std, moments.count) == (0, 0, 0)
    moments.update(torch.tensor([1, 3]))
    moments.merge(torch.tensor([12.0, 74.0, 2.0]))  # 5 and 7, of two ranks
    assert (moments.mean, moments.count) == (4, 4)
    assert moments.std == pytest.approx(math.sqrt(5))


def test_running_moments_go_on_from_their_state_and_take_in_no_nan() -> None:
    whole, first = RunningMoments(), RunningMoments()
    whole.update(torch.tensor([1.0, 2.0]))
    first.update(torch.tensor([1.0, 2.0]))
    second = RunningMoments()
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    with pytest.raises(ValueError, match="finite"):
        second.update(torch.tensor([1.0, NAN]))
    for moments in (whole, second):
        moments.update(torch.tensor([0.1, 0.7]))
    assert (whole.mean, whole.std, whole.count) == (second.mean, second.std, second.count)


def test_the_kl_coefficient_follows_the_kl() -> None:
    controller = AdaptiveKL(0.1, target=6.0, horizon=1000)
    controller.update(6.6, n=100)  # 10% above: .1 * (1 + .1 * .1)
    assert controller.value == pytest.approx(0.101)
    controller.update(600.0, n=100)  # clipped at 20%
    assert controller.value == pytest.approx(0.101 * 1.02)
    controller.update(-3.0, n=500)
    assert controller.value == pytest.approx(0.101 * 1.02 * 0.9)
    again = AdaptiveKL(0.5, target=6.0, horizon=1000)
    again.load_state_dict(json.loads(json.dumps(controller.state_dict())))
    assert again.value == controller.value


def test_without_a_target_the_kl_coefficient_stays() -> None:
    controller = AdaptiveKL(0.05, None, 10)
    controller.update(1e9, 10**6)
    assert controller.value == 0.05


def test_a_kl_coefficient_never_changes_its_sign_nor_becomes_nan() -> None:
    controller = AdaptiveKL(0.1, 6.0, horizon=100)
    with pytest.raises(AssertionError, match="horizon 100 for 600 samples"):  # settings that ppo/check.py refuses
        controller.update(0.0, n=600)
    with pytest.raises(ValueError, match="nan"):
        controller.update(NAN, n=1)
    assert controller.value == 0.1
