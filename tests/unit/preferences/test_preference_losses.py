"""Losses over preferences against numbers by hand and a plain loop over pairs."""

import math

import pytest
import torch

from preferences.losses import bon, dpo, ipo, kto, kto_baseline, orpo, sft, simpo

LN2 = math.log(2)


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x))


def test_dpo_by_hand() -> None:
    # no difference: ln 2; a difference of 2 at beta .5: -log sigmoid(1) = log(1 + 1/e)
    total, count = dpo(numbers(3.0, 1.0), numbers(3.0, -1.0), beta=0.5)
    assert float(total) == pytest.approx(LN2 + 0.3132616875, abs=1e-9)
    assert int(count) == 2
    # smoothed by .25: .75 * .3132616875 + .25 * 1.3132616875
    assert float(dpo(numbers(1.0), numbers(-1.0), 0.5, 0.25)[0]) == pytest.approx(0.5632616875, abs=1e-9)


def test_ipo_by_hand() -> None:
    # 1 / (2 * .1) = 5: (2 - 5)^2 and (7 - 5)^2
    assert float(ipo(numbers(1.0, 4.0), numbers(-1.0, -3.0), 0.1)[0]) == pytest.approx(9 + 4)


def test_kto_by_hand() -> None:
    # at the baseline either costs half its weight; at ratio = z0 + ln(3) / beta sigmoid is 3/4
    ratios, liked = numbers(1.0, 1.0, 1.0 + math.log(3) / 0.1), torch.tensor([True, False, True])
    total, count = kto(ratios, liked, torch.tensor(1.0), 0.1, liked_weight=2.0, disliked_weight=3.0)
    assert float(total) == pytest.approx(2 * 0.5 + 3 * 0.5 + 2 * 0.25)
    assert int(count) == 3


def test_the_baseline_of_kto_is_a_mean_and_never_negative() -> None:
    assert float(kto_baseline(numbers(6.0, 4.0))) == 1.5
    assert float(kto_baseline(numbers(-6.0, 4.0))) == 0.0
    assert float(kto_baseline(numbers(0.0, 0.0))) == 0.0  # fillers alone


def test_simpo_by_hand() -> None:
    # 2 * (1.5 - 1) - 1 = 0
    assert float(simpo(numbers(-1.0), numbers(-1.5), beta=2.0, gamma=1.0)[0]) == pytest.approx(LN2)


def test_orpo_by_hand() -> None:
    # p = 3/4 and 1/4: odds 3 and 1/3, a ratio of 9, and sigmoid(log 9) = .9
    total, _ = orpo(numbers(math.log(0.75)), numbers(math.log(0.25)), weight=0.1)
    assert float(total) == pytest.approx(-math.log(0.75) - 0.1 * math.log(0.9))


def test_bon_by_hand() -> None:
    # d = .5 * (1 - -1) = 1, preferred with .8; .2 * 3 nats of the chosen reply
    total, _ = bon(numbers(1.0), numbers(-1.0), numbers(-3.0), numbers(0.8), beta=0.5, alpha=0.2)
    assert float(total) == pytest.approx(0.6 + 0.8 * (0.8 * 0.3132616875 + 0.2 * 1.3132616875), abs=1e-9)


def test_the_sft_term_is_the_mean_cost_of_a_token() -> None:
    total, count = sft(numbers(-1.0, -3.0))
    assert (float(total), int(count)) == (4.0, 2)


def test_a_plain_loop_over_pairs_gives_the_same_sums() -> None:
    torch.manual_seed(0)
    a, b, policy = (torch.randn(50, dtype=torch.float64) for _ in range(3))
    low_a, low_b, policy = -a.abs() - 0.01, -b.abs() - 0.01, -policy.abs()
    preference, liked = torch.rand(50, dtype=torch.float64), torch.rand(50) > 0.5
    wanted = dict.fromkeys(("dpo", "ipo", "kto", "simpo", "orpo", "bon"), 0.0)
    for x, y, p, q, q2, share, up in zip(
        *(v.tolist() for v in (a, b, policy, low_a, low_b, preference, liked)), strict=True
    ):
        d = 0.3 * (x - y)
        wanted["dpo"] += -0.9 * log_sigmoid(d) - 0.1 * log_sigmoid(-d)
        wanted["ipo"] += (x - y - 1 / 0.6) ** 2
        wanted["kto"] += 1.5 / (1 + math.exp(0.3 * (x - 0.2))) if up else 0.5 / (1 + math.exp(0.3 * (0.2 - x)))
        wanted["simpo"] += -log_sigmoid(2 * (q - q2) - 0.5)
        odds = math.exp(q) / (1 - math.exp(q)) / (math.exp(q2) / (1 - math.exp(q2)))
        wanted["orpo"] += -q - 0.2 * log_sigmoid(math.log(odds))
        wanted["bon"] += -0.1 * p - 0.9 * (share * log_sigmoid(d) + (1 - share) * log_sigmoid(-d))
    found = {
        "dpo": dpo(a, b, 0.3, 0.1),
        "ipo": ipo(a, b, 0.3),
        "kto": kto(a, liked, torch.tensor(0.2), 0.3, 1.5, 0.5),
        "simpo": simpo(low_a, low_b, 2.0, 0.5),
        "orpo": orpo(low_a, low_b, 0.2),
        "bon": bon(a, b, policy, preference, 0.3, 0.1),
    }
    assert {name: float(total) for name, (total, _) in found.items()} == pytest.approx(wanted)


def test_gradients_are_finite_where_probabilities_are_0_or_1() -> None:
    extremes = numbers(0.0, -1e-9, -800.0, -LN2).requires_grad_()
    total, _ = orpo(extremes, extremes.flip(0), 0.1)
    total.backward()
    assert torch.isfinite(total)
    assert torch.isfinite(extremes.grad).all()
    far = numbers(-1e4, 1e4).requires_grad_()
    sum(loss[0] for loss in (dpo(far, -far, 0.1), kto(far, far > 0, far.sum().detach(), 0.1))).backward()
    assert torch.isfinite(far.grad).all()
