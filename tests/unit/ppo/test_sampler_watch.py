"""The watch over a server: replies that do not fit, limits before and after there is a baseline, and sound runs."""

import json

import numpy as np
import pytest
import torch

from ppo.algorithms.losses import gap_sums
from ppo.sampler_watch import FEWEST, LIMITS, WINDOW, SamplerWatch


def judged(watch: SamplerWatch, gap: float = 0.03, ratio: float = 1.0, error: float = 0.001, far: float = 0.0) -> list:
    return watch.breaches(gap, far, ratio, error)


def test_replies_like_those_before_are_no_breach() -> None:
    watch = SamplerWatch()
    assert all(judged(watch, 0.03 + 0.002 * (i % 3), far=0.001 * (i % 2)) == [] for i in range(40))
    assert all(len(past) == WINDOW for past in watch.past.values())


def test_fixed_limits_hold_until_there_is_a_baseline() -> None:
    watch = SamplerWatch()
    assert judged(watch, 0.24) == []
    assert judged(watch, 0.26) == ["p and q differ by 0.26 nats a token, at most 0.25 expected"]
    for _ in range(FEWEST):
        judged(watch, 0.02)
    assert watch.most("gap") == pytest.approx(0.04), "twice the median"
    assert judged(watch, 0.05) == ["p and q differ by 0.05 nats a token, at most 0.04 expected"]
    assert judged(watch, 0.02, far=0.02) == ["2.0% of the tokens differ by a factor of 2, at most 1.0% expected"]


def test_a_baseline_with_noise_allows_it_by_the_median_deviation() -> None:
    watch = SamplerWatch({"gap": [0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09], "far": []})
    assert watch.most("gap") == pytest.approx(0.05 + 6 * 1.4826 * 0.02)


def test_a_level_that_stays_is_the_next_baseline() -> None:
    watch = SamplerWatch({"gap": [0.02] * 10, "far": [0.0] * 10})
    assert [bool(judged(watch, 0.1)) for _ in range(14)].count(True) == 10


def test_shifted_log_probabilities_break_the_mean_ratio() -> None:
    [text] = judged(SamplerWatch(), ratio=0.98, error=0.001)
    assert text == "the mean of p / q, which is 1 for replies that were sampled with q, is 0.98 (standard error 0.001)"
    assert judged(SamplerWatch(), ratio=0.98, error=0.01) == [], "chance"
    assert judged(SamplerWatch(), ratio=1.004, error=1e-6) == [], "a trifle"


def test_what_is_no_number_is_a_breach() -> None:
    watch = SamplerWatch()
    assert len(judged(watch, float("inf"), float("nan"), float("nan"), float("nan"))) == 3
    assert watch.past == {"gap": [], "far": []}
    assert watch.most("gap") == LIMITS["gap"]


def test_the_state_goes_through_json() -> None:
    watch, other = SamplerWatch(), SamplerWatch()
    judged(watch, 0.1, far=0.5)
    other.load_state_dict(json.loads(json.dumps(watch.state_dict())))
    assert other == watch
    other.load_state_dict({})
    assert other == SamplerWatch(), "of a checkpoint from before there was a watch"


@pytest.mark.parametrize("apart", [0.01, 0.3])
def test_sampled_tokens_have_a_mean_ratio_of_1_and_shifted_ones_do_not(apart: float) -> None:
    """Of two distributions however far apart, drawn 400 times: the mean p / q is within 6 standard errors."""
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(400, 50, generator=random)
    q = logits.log_softmax(-1)
    p = (logits + apart * torch.randn(400, 50, generator=random)).log_softmax(-1)
    ids = torch.multinomial(q.exp(), 200, replacement=True, generator=random)
    distances = []
    for shift in (0.0, 0.3):
        sums = [gap_sums(a.gather(0, i), b.gather(0, i) + shift) for a, b, i in zip(p, q, ids, strict=True)]
        means = np.array([one["ratio"] / 200 for one in sums])
        errors = np.array([np.sqrt((one["squares"] / 200 - m * m) / 200) for one, m in zip(sums, means, strict=True)])
        distances.append(np.abs(means - 1) / errors)
    assert (distances[0] < 6).all()
    assert (distances[0] < 2).mean() > 0.93, "a standard error"
    assert (distances[1] > 6).mean() > 0.99
