"""Curves: the KL of the best of N, gold along the way, at equal length, and which form predicts it."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from lmgym.apps.lab.curves import Curve, Point, best_of_n_kl_exact, load_curves, pool_points, read_looks, run_points
from lmgym.apps.lab.forms import (
    BEST_OF,
    FORMS,
    QUADRATIC,
    RL,
    UpDown,
    coefficients,
    errors_by_form,
    extrapolation_error,
)
from lmgym.apps.lab.page import Found, lab_page
from lmgym.apps.lab.pool import Pool
from lmgym.scoring.best_of_n_estimates import best_of_n_kl


def curve(d: np.ndarray, gain: np.ndarray, world: int = 0, method: str = "grpo") -> Curve:
    points = [
        Point(i, float(x) ** 2, float(x), float(y), 0.1, 8.0, None)
        for i, (x, y) in enumerate(zip(d, gain, strict=True))
    ]
    return Curve("a", method, 0.0, world, 1, points)


def test_the_kl_of_the_best_of_n_is_the_known_bound_where_all_replies_differ() -> None:
    scores = np.random.default_rng(0).standard_normal((3, 4096))
    for n in (1, 2, 8, 64):
        assert best_of_n_kl_exact(scores, n) == pytest.approx(best_of_n_kl(n), abs=0.01)


def test_the_kl_of_the_best_of_n_is_computed_by_hand_where_replies_are_equal() -> None:
    """Scores 0 and 1 with probability 3/4 and 1/4: the best of 2 has score 1 with probability 7/16."""
    scores = np.array([[0.0, 0.0, 0.0, 1.0]])
    by_hand = 7 / 16 * math.log(7 / 16 / (1 / 4)) + 9 / 16 * math.log(9 / 16 / (3 / 4))
    assert best_of_n_kl_exact(scores, 2) == pytest.approx(by_hand)
    assert best_of_n_kl_exact(scores, 10_000) == pytest.approx(math.log(4))  # all mass on a quarter of the replies
    assert best_of_n_kl_exact(np.zeros((2, 8)), 100) == 0


def test_a_pool_gives_the_mean_at_n_1_and_all_gold_that_the_scores_find_at_n() -> None:
    rng = np.random.default_rng(1)
    gold = rng.standard_normal((50, 16))
    pool = Pool([], [], gold, np.full(gold.shape, 8.0))
    points = pool_points(pool, gold)
    assert [point.at for point in points] == [1, 2, 4, 8, 16]
    assert points[0].gold == pytest.approx(gold.mean())
    assert points[0].kl == pytest.approx(0)
    assert points[-1].gold == pytest.approx(gold.max(1).mean(), abs=1e-5)
    against = pool_points(pool, -gold)
    assert against[-1].gold == pytest.approx(gold.min(1).mean(), abs=1e-5)


def test_at_equal_length_a_scorer_of_length_finds_nothing_where_gold_is_made_of_length() -> None:
    rng = np.random.default_rng(2)
    words = rng.integers(1, 40, (80, 64)).astype(float)
    gold = 0.1 * words + rng.standard_normal(words.shape)
    last = pool_points(Pool([], [], gold, words), words)[3]  # the best of 8
    start = gold.mean()
    assert last.gold - start > 1.2
    assert last.equal_length is None or abs(last.equal_length - start) < 0.1
    found = pool_points(Pool([], [], gold, words), words)[1]
    assert found.equal_length == pytest.approx(start, abs=0.1)


def test_replies_of_which_hardly_one_is_as_short_as_the_first_have_no_gold_at_equal_length() -> None:
    words = np.tile(np.arange(64.0), (4, 1))
    assert pool_points(Pool([], [], words, words), words)[-1].equal_length is None


def test_a_runs_looks_are_placed_at_the_kl_of_the_rollouts_behind_them(tmp_path: Path) -> None:
    metrics = [
        {"step": 0, "eval/reward/mean": 0.0},
        {"step": 4, "kl/reference": 0.0, "eval/reward/mean": 0.5},
        {"step": 8, "kl/reference": 0.3, "eval/reward/mean": 1.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    (tmp_path / "samples").mkdir()
    for step, gold in ((0, [0.0, 1.0]), (4, [1.0, 3.0]), (8, [2.0, 2.0])):
        rows = [
            {"task": i, "prompt": "p", "reply": "a b", "scores": {"reward": step}, "monitors": {"eval_scorer": value}}
            for i, value in enumerate(gold)
        ]
        text = "".join(json.dumps(row) + "\n" for row in reversed(rows))  # ranks write in any order
        (tmp_path / f"samples/evaluation-{step:06d}.jsonl").write_text(text)
    points = run_points(tmp_path, read_looks(tmp_path))
    assert [point.kl for point in points] == [0.0, 0.3, None]
    assert [point.gold for point in points] == [0.5, 2.0, 2.0]
    assert [point.reward for point in points] == [0, 4, 8]
    # gains of (1, 2) over the start: standard deviation .707, over 2 prompts
    assert points[1].gold_error == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("form", "gain"),
    [
        (BEST_OF, lambda d: d * (1.5 - 0.4 * d)),
        (RL, lambda d: d * (0.8 - 0.5 * np.log(np.maximum(d, 1e-9)))),
    ],
)
def test_a_form_predicts_the_far_half_of_its_own_curve_and_the_others_do_not(form, gain) -> None:
    d = np.linspace(0, 4, 20)
    errors = {one.name: extrapolation_error(curve(d, gain(d)), one) for one in FORMS}
    exact = {name for name, error in errors.items() if error is not None and error < 1e-6}
    assert form.name in exact
    assert exact <= {form.name, QUADRATIC.name}  # a quadratic includes the best of N's


def test_gaos_coefficients_are_found_with_an_interval_over_worlds() -> None:
    d = np.linspace(0, 3, 12)
    curves = [curve(d, d * (1 + shift - 0.3 * d), world, "best_of_n") for world, shift in enumerate((-0.1, 0.0, 0.1))]
    a, b = coefficients(curves)
    assert a.value == pytest.approx(1.0)
    assert b.value == pytest.approx(0.3)
    assert a.low is not None
    assert a.low == pytest.approx(1.0 - 4.303 * 0.1 / math.sqrt(3), abs=1e-3)  # t with 2 degrees of freedom


def test_up_and_down_follows_a_peak_and_stays_at_its_last_value() -> None:
    d, gain = np.arange(7.0), np.array([0, 2, 1, 3, 2, 2.5, 1])
    at = UpDown().fit(d, gain)(np.array([0, 1, 2, 3, 4, 5, 6, 9]))
    assert at == pytest.approx([0, 1.5, 1.5, 3, 2.25, 2.25, 1, 1])


def test_a_short_curve_is_not_judged() -> None:
    assert extrapolation_error(curve(np.arange(5.0), np.arange(5.0)), RL) is None
    assert errors_by_form([curve(np.arange(5.0), np.arange(5.0))])["RL"].value is None


def test_curves_survive_json_and_the_page_shows_every_one_of_them() -> None:
    d = np.linspace(0, 3, 12)
    curves = [curve(d, d * (1 - 0.3 * d), world, method) for world in (0, 1) for method in ("best_of_n", "ppo")]
    assert load_curves(json.loads(json.dumps(Found(curves).as_json()))["curves"]) == curves
    page = lab_page("mine", Found(curves))
    for id in ("world_0_ppo_0_gold", "world_1_best_of_n_0_score", "mean_ppo"):
        assert f'"{id}"' in page
    assert "Which form predicts" in page
    assert page.count("<td") >= 4 * 13


def test_what_is_lost_is_a_share_of_the_gain_at_the_peak() -> None:
    found = curve(np.arange(4.0), np.array([0.5, 1.5, 1.3, 1.1]))
    assert found.peak.gold == 1.5
    assert found.lost == pytest.approx(0.4)
    assert found.fallen
    without_gain = curve(np.arange(3.0), np.array([0.5, 0.4, 0.2]))
    assert without_gain.lost is None
    assert without_gain.fallen
    assert not curve(np.arange(3.0), np.array([0.5, 1.5, 1.4])).fallen
