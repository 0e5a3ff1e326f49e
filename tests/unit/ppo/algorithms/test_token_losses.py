"""Losses of tokens beside PPO's: two bounds, the dual clip, CISPO, ratios of replies, and the sampler's correction."""

import math

import pytest
import torch

from ppo.algorithms.losses import (
    ROUNDING,
    cispo_loss,
    clipped_loss,
    gap_sums,
    likelihood_loss,
    ratios_of_replies,
    sampler_weights,
)

NAN = math.nan


def test_two_bounds_and_the_dual_clip_by_hand() -> None:
    # ratios 1.25 1.5 .5 6 with advantages 1 1 -1 -1, bounds .8 and 1.28, negative ones at most 3:
    # -1.25; max(-1.5, -1.28); max(.5, .8); max(3, 1.28)
    ratios, advantages = torch.tensor([[1.25, 1.5, 0.5, 6.0]]), torch.tensor([[1.0, 1.0, -1.0, -1.0]])
    logprobs = (torch.full((1, 4), -8.0) + ratios.log()).requires_grad_()
    losses, clipped = clipped_loss(logprobs, logprobs + 8, advantages, torch.ones(1, 4), 0.2, 0.28, 3.0)
    assert losses[0].tolist() == pytest.approx([-1.25, -1.28, 0.8, 3.0])
    assert clipped[0].tolist() == [False, True, True, True]
    losses.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad[0].tolist() == pytest.approx([-1.25, 0.0, 0.0, 0.0])
    free, _ = clipped_loss(logprobs, logprobs + 8, advantages, torch.ones(1, 4), 0.2, 0.28)
    assert free[0, 3].item() == pytest.approx(6.0)


def test_cispo_by_hand_keeps_the_gradient_of_every_token() -> None:
    # ratios 2 9 .1 with advantages 1 1 -1, at most 5: the loss is -ratio A log p, its gradient -ratio A
    ratios, advantages = torch.tensor([[2.0, 9.0, 0.1]]), torch.tensor([[1.0, 1.0, -1.0]])
    logprobs = (torch.full((1, 3), -4.0) + ratios.log()).requires_grad_()
    losses, clipped = cispo_loss(logprobs, logprobs + 4, advantages, torch.ones(1, 3), 1.0, 4.0)
    expected = [-2 * logprobs[0, 0].item(), -5 * logprobs[0, 1].item(), 0.1 * logprobs[0, 2].item()]
    assert losses[0].tolist() == pytest.approx(expected)
    assert clipped[0].tolist() == [False, True, False]
    losses.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad[0].tolist() == pytest.approx([-2.0, -5.0, 0.1])
    bounded, _ = cispo_loss(logprobs, logprobs + 4, advantages, torch.ones(1, 3), 0.2, 4.0)
    assert bounded[0, 2].item() == pytest.approx(0.8 * logprobs[0, 2].item()), "a lower bound, if there is one"


def test_the_likelihood_has_no_ratio() -> None:
    logprobs = torch.tensor([[-1.0, -2.0, -3.0]], requires_grad=True)
    losses, clipped = likelihood_loss(logprobs, logprobs + 9, torch.tensor([[2.0, 0.0, 2.0]]), torch.ones(1, 3))
    assert losses[0].tolist() == [2.0, 0.0, 6.0]
    assert not clipped.any()
    losses.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad[0].tolist() == [-2.0, 0.0, -2.0]


@pytest.mark.parametrize("loss", [clipped_loss, cispo_loss, likelihood_loss])
def test_masked_places_change_nothing_and_have_no_gradient(loss) -> None:
    mask = torch.tensor([[True, False, True]])
    given = [torch.tensor([[-1.0, rubbish, -2.0]], requires_grad=True) for rubbish in (0.0, NAN)]
    found = [loss(x, x - x.detach(), torch.tensor([[1.0, NAN, -1.0]]), mask)[0] for x in given]
    assert torch.equal(*found)
    found[1].sum().backward()
    assert given[1].grad is not None
    assert given[1].grad[0, 1] == 0
    assert given[1].grad[0, 0] != 0


def test_a_replys_ratio_is_its_geometric_mean_and_reaches_all_its_tokens() -> None:
    log_ratios = torch.tensor([[0.3, -0.1, 0.1, 0.8]], requires_grad=True)
    found = ratios_of_replies(log_ratios, torch.tensor([0, 0, 0, 1]), 2)
    assert found[0].tolist() == pytest.approx([0.1, 0.1, 0.1, 0.8])
    found[0, 0].backward()
    assert log_ratios.grad is not None
    assert log_ratios.grad[0].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])


TRAINER, SAMPLER = torch.tensor([-1.0, -2.0, -1.0, -1.0]), torch.tensor([-1.5, -2.25, -2.5, -1.0])
LENGTHS = torch.tensor([2, 2])


def test_weights_of_the_sampler_by_hand() -> None:
    # differences .5 .25 | 1.5 0: ratios 1.65 1.28 | 4.48 1, products 2.12 | 4.48
    assert sampler_weights(TRAINER, SAMPLER, LENGTHS, "none", 3.0).tolist() == [1.0] * 4
    by_token = sampler_weights(TRAINER, SAMPLER, LENGTHS, "token_truncate", 3.0)
    assert by_token.tolist() == pytest.approx([math.exp(0.5), math.exp(0.25), 3.0, 1.0])
    by_reply = sampler_weights(TRAINER, SAMPLER, LENGTHS, "sequence_mask", 3.0)
    assert by_reply.tolist() == pytest.approx([math.exp(0.75), math.exp(0.75), 0.0, 0.0])


def test_replies_are_masked_whose_mean_ratio_leaves_a_band_on_either_side() -> None:
    # mean differences .375 | .75, and their negatives: geometric means 1.45 | 2.12, and .69 | .47
    for trainer, sampler in ((TRAINER, SAMPLER), (SAMPLER, TRAINER)):
        assert sampler_weights(trainer, sampler, LENGTHS, "geometric_mask", 1.5).tolist() == [1.0, 1.0, 0.0, 0.0]
        assert sampler_weights(trainer, sampler, LENGTHS, "geometric_mask", 1.4).tolist() == [0.0] * 4
        assert sampler_weights(trainer, sampler, LENGTHS, "geometric_mask", 2.2).tolist() == [1.0] * 4


@pytest.mark.parametrize("mode", ["none", "token_truncate", "sequence_mask", "geometric_mask"])
def test_an_engine_that_rounds_otherwise_in_fp32_has_weights_of_exactly_1(mode) -> None:
    generator = torch.Generator().manual_seed(0)
    trainer = -3 * torch.rand(400, generator=generator)
    sampler = trainer + (torch.rand(400, generator=generator) - 0.5) * ROUNDING
    assert not torch.equal(trainer, sampler)
    weights = sampler_weights(trainer, sampler, torch.full((4,), 100), mode, 3.0)
    assert torch.equal(weights, torch.ones(400))


def test_the_gap_is_the_kl_and_the_chi_square_of_the_distributions() -> None:
    """Of two distributions over three tokens, of which each was sampled as often as the sampler says."""
    sampler, trainer = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.5, 0.25])
    ids = torch.tensor([0, 0, 1, 2])
    sums = gap_sums(trainer.log()[ids], sampler.log()[ids])
    kl = sum(q * math.log(q / p) for q, p in zip(sampler.tolist(), trainer.tolist(), strict=True))
    chi_square = sum(p * p / q for q, p in zip(sampler.tolist(), trainer.tolist(), strict=True)) - 1
    assert sums["kl"] / 4 == pytest.approx(kl)
    assert sums["squares"] / 4 - 1 == pytest.approx(chi_square)
    assert sums["ratio"] / 4 == pytest.approx(1)
    assert sums["far"] == 3, "a half, a half and twice as likely"
