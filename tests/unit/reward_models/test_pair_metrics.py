"""Metrics over pairs: against numbers worked out by hand, scipy and scikit-learn, and the interval's own theory."""

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, log_loss

from lmgym.report.calibration import reliability
from lmgym.statistics import TOO_FEW
from lmgym.training.probes import Report
from reward_models.metrics.pair_metrics import pair_metrics

# margins 2, -1, 0, 1; longer: chosen, rejected, neither, rejected
CHOSEN, REJECTED = [3.0, 0.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0.0]
CHOSEN_LENGTHS, REJECTED_LENGTHS = [9, 2, 5, 1], [4, 3, 5, 6]
PROMPTS = ["a", "b", "b", "c"]


def random_pairs(pairs: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(2, pairs)).round(1)
    return {
        "chosen": scores[0] + 0.3,
        "rejected": scores[1],
        "prompt_ids": rng.integers(pairs // 2, size=pairs),
        "chosen_lengths": rng.integers(1, 30, size=pairs),
        "rejected_lengths": rng.integers(1, 30, size=pairs),
    }


def of_wins(wins: np.ndarray, prompt_ids: np.ndarray, **options: int) -> Report:
    lengths = np.ones(len(wins))
    return pair_metrics(wins.astype(float), np.full(len(wins), 0.5), prompt_ids, lengths, lengths, **options)


def test_four_pairs_give_the_numbers_worked_out_by_hand() -> None:
    report = pair_metrics(CHOSEN, REJECTED, PROMPTS, CHOSEN_LENGTHS, REJECTED_LENGTHS)
    found = report.metrics
    assert (found["accuracy"], found["ties"], found["pairs"], found["prompts"]) == (0.5, 0.25, 4, 3)
    assert found["margin_mean"] == 0.5
    assert found["margin_std"] == pytest.approx(math.sqrt((1.5**2 + 1.5**2 + 0.5**2 + 0.5**2) / 4))
    p = [1 / (1 + math.exp(-margin)) for margin in (2, -1, 0, 1)]
    assert found["nll"] == pytest.approx(-sum(map(math.log, p)) / 4)
    assert found["brier"] == pytest.approx(sum((1 - x) ** 2 for x in p) / 4)
    # confidences .881, .731 twice (one right) and .5 (half right): three bins
    assert found["ece"] == pytest.approx((1 * (1 - p[0]) + 2 * (p[3] - 0.5) + 0) / 4)
    assert (found["pairs_longer_chosen"], found["accuracy_longer_chosen"]) == (1, 1.0)
    assert (found["pairs_longer_rejected"], found["accuracy_longer_rejected"]) == (2, 0.5)
    assert report.undefined == {}


def test_the_reliability_of_four_pairs_is_as_worked_out_by_hand() -> None:
    p = [1 / (1 + math.exp(-margin)) for margin in (2, 1)]
    assert [tuple(b) for b in reliability(CHOSEN, REJECTED)] == [
        pytest.approx((0.5, 0.55, 1, 0.5, 0.5)),
        pytest.approx((0.7, 0.75, 2, p[1], 0.5)),
        pytest.approx((0.85, 0.9, 1, p[0], 1.0)),
    ]


def test_certainty_falls_into_the_last_bin() -> None:
    assert reliability([1000.0], [0.0]) == [(pytest.approx(0.95), 1.0, 1, 1.0, 1.0)]


def test_reliability_is_the_upper_half_of_scikit_learns_curve_over_both_orders_of_each_pair() -> None:
    rng = np.random.default_rng(1)
    margins = rng.normal(0.5, 1.5, size=4000)
    p = 1 / (1 + np.exp(-margins))
    accuracy, confidence = calibration_curve([1] * len(p) + [0] * len(p), np.concatenate([p, 1 - p]), n_bins=20)
    ours = reliability(margins, np.zeros(len(p)))
    assert [b.accuracy for b in ours] == pytest.approx(accuracy[10:])
    assert [b.confidence for b in ours] == pytest.approx(confidence[10:])
    assert sum(b.pairs for b in ours) == len(p)


def test_losses_and_correlations_agree_with_scikit_learn_and_scipy() -> None:
    pairs = random_pairs(500)
    found = pair_metrics(**pairs).metrics
    p = 1 / (1 + np.exp(pairs["rejected"] - pairs["chosen"]))
    assert found["nll"] == pytest.approx(log_loss(np.ones(500), p, labels=[0, 1]))
    assert found["brier"] == pytest.approx(brier_score_loss(np.ones(500), p, pos_label=1))
    scores = np.concatenate([pairs["chosen"], pairs["rejected"]])
    lengths = np.concatenate([pairs["chosen_lengths"], pairs["rejected_lengths"]])
    assert found["score_length_correlation"] == pytest.approx(stats.pearsonr(scores, lengths).statistic)
    assert found["score_length_spearman"] == pytest.approx(stats.spearmanr(scores, lengths).statistic)


def test_a_scorer_that_knows_the_odds_is_calibrated_and_one_that_doubles_them_is_not() -> None:
    rng = np.random.default_rng(2)
    margins = rng.normal(0, 2, size=40_000)
    margins *= np.where(rng.random(len(margins)) < 1 / (1 + np.exp(-np.abs(margins))), 1, -1) * np.sign(margins)
    rest = (np.zeros(len(margins)), np.arange(len(margins)), np.ones(len(margins)), np.ones(len(margins)))
    assert pair_metrics(margins, *rest).metrics["ece"] < 0.01
    assert pair_metrics(2 * margins, *rest).metrics["ece"] > 0.05


def test_margins_of_thousands_lose_finite_nats() -> None:
    found = pair_metrics([0.0, 5000.0], [5000.0, 0.0], [0, 1], [1, 1], [1, 1]).metrics
    assert (found["nll"], found["brier"], found["ece"]) == (2500.0, 0.5, 0.5)


def test_swapping_chosen_and_rejected_turns_accuracy_into_one_minus_accuracy_minus_ties() -> None:
    for seed in range(5):
        pairs = random_pairs(301, seed)
        there = pair_metrics(**pairs).metrics
        swapped = pairs | {"chosen": pairs["rejected"], "rejected": pairs["chosen"]}
        back = pair_metrics(**swapped).metrics
        assert there["ties"] == back["ties"] > 0
        assert back["accuracy"] == pytest.approx(1 - there["accuracy"] - there["ties"])
        assert back["margin_mean"] == pytest.approx(-there["margin_mean"])


def test_the_order_of_pairs_and_the_names_of_prompts_do_not_matter() -> None:
    pairs = random_pairs(200)
    order = np.random.default_rng(3).permutation(200)
    shuffled = {name: column[order] for name, column in pairs.items()}
    shuffled["prompt_ids"] = np.array([f"prompt {i}" for i in shuffled["prompt_ids"]])
    assert pair_metrics(**shuffled).metrics == pytest.approx(pair_metrics(**pairs).metrics)


def test_the_interval_is_as_wide_as_a_binomial_says_and_covers_the_truth_19_times_in_20() -> None:
    rng = np.random.default_rng(4)
    pairs, truth, covered, widths = 400, 0.7, 0, []
    for _ in range(300):
        found = of_wins(rng.random(pairs) < truth, np.arange(pairs)).metrics
        covered += found["accuracy_low"] <= truth <= found["accuracy_high"]
        widths.append(found["accuracy_high"] - found["accuracy_low"])
    assert np.mean(widths) == pytest.approx(2 * 1.96 * math.sqrt(truth * (1 - truth) / pairs), rel=0.05)
    # three standard errors of 300 draws at .95 are .038
    assert 0.91 <= covered / 300 <= 0.99


def test_pairs_of_a_prompt_that_move_together_widen_the_interval_by_the_root_of_their_number() -> None:
    wins = np.repeat(np.random.default_rng(5).random(100) < 0.7, 9)
    by_prompt = of_wins(wins, np.repeat(np.arange(100), 9)).metrics
    by_row = of_wins(wins, np.arange(900)).metrics
    assert by_prompt["accuracy"] == by_row["accuracy"]
    width = [found["accuracy_high"] - found["accuracy_low"] for found in (by_prompt, by_row)]
    assert width[0] / width[1] == pytest.approx(3, rel=0.1)


def test_what_the_data_does_not_define_is_named_with_its_reason() -> None:
    report = pair_metrics([1.0, 2.0], [0.0, 3.0], ["only", "only"], [5, 5], [5, 5])
    assert report.undefined == {
        "accuracy_low": TOO_FEW,
        "accuracy_high": TOO_FEW,
        "score_length_correlation": "every reply has the same length, 5",
        "score_length_spearman": "every reply has the same length, 5",
        "accuracy_longer_chosen": "no pair whose chosen reply is the longer one",
        "accuracy_longer_rejected": "no pair whose rejected reply is the longer one",
    }
    assert report.notes == ("–: one prompt is too few for a 95% interval",)
    assert not report.metrics.keys() & report.undefined.keys()
    assert report.metrics["pairs_longer_rejected"] == 0


def test_a_scorer_of_constants_is_always_wrong_calibrated_and_without_correlation() -> None:
    same = np.full(30, 0.1)
    report = pair_metrics(same, same, np.arange(30), np.arange(30), np.arange(30) + 1)
    assert (report.metrics["accuracy"], report.metrics["ties"], report.metrics["ece"]) == (0, 1, 0)
    assert report.undefined["score_length_correlation"] == "every reply has the same score, 0.1"
    assert report.metrics["accuracy_low"] == 0
    assert 0 < report.metrics["accuracy_high"] < 0.15


def test_non_finite_scores_are_counted_and_located() -> None:
    with pytest.raises(ValueError, match="rejected holds 2 non-finite of 4 values, the first nan at index 1"):
        pair_metrics(CHOSEN, [0.0, math.nan, 1.0, math.inf], PROMPTS, CHOSEN_LENGTHS, REJECTED_LENGTHS)


def test_arrays_that_do_not_match_and_no_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="one entry a pair in each"):
        pair_metrics(CHOSEN, REJECTED, PROMPTS, CHOSEN_LENGTHS[:3], REJECTED_LENGTHS)
    with pytest.raises(ValueError, match="0 pairs; needed at least 1"):
        pair_metrics([], [], [], [], [])
