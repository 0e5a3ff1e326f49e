"""The temperature of a scorer of pairs: against scikit-learn's logistic regression, and honest on other prompts."""

import math

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from lmgym.report.calibration import calibration_error, cross_fitted, fit_temperature, reliability
from reward_models.metrics.pair_metrics import temperature_metrics


def margins(pairs: int, temperature: float, seed: int = 0) -> np.ndarray:
    """Of a scorer that is right with probability sigmoid(|margin| / temperature)."""
    rng = np.random.default_rng(seed)
    size = np.abs(rng.normal(size=pairs)) * 2
    return np.where(rng.random(pairs) < 1 / (1 + np.exp(-size / temperature)), size, -size)


@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
def test_a_temperature_is_the_inverse_slope_of_a_logistic_regression(temperature: float) -> None:
    given = margins(3000, temperature)
    found = fit_temperature(given).value
    # each pair from both sides: what is a choice of the first reply, of two
    sides, labels = np.concatenate([given, -given])[:, None], np.repeat([1, 0], len(given))
    slope = LogisticRegression(fit_intercept=False, C=1e12, tol=1e-10).fit(sides, labels).coef_[0, 0]
    assert found == pytest.approx(1 / slope, rel=1e-5)
    assert found == pytest.approx(temperature, rel=0.1)


def test_two_margins_give_the_temperature_worked_out_by_hand() -> None:
    # three right of one size for one wrong of it: sigmoid(2 / T) = 3 / 4, T = 2 / ln 3
    assert fit_temperature([2.0] * 45 + [-2.0] * 15).value == pytest.approx(2 / math.log(3))


def test_what_has_no_temperature_has_a_reason() -> None:
    assert "49 pairs; a temperature is fitted on 50" in fit_temperature(margins(49, 1)).reason
    assert "no temperature is likelier than guessing" in fit_temperature([1.0] * 40 + [-1.0] * 40).reason
    assert "no pair is wrong" in fit_temperature([0.1, 0.2] * 40).reason
    assert fit_temperature(np.zeros(80)).value is None
    assert fit_temperature([1000.0] * 70 + [-1000.0]).value == pytest.approx(1000 / math.log(70))


def test_pairs_of_one_half_are_scaled_by_the_temperature_of_the_other() -> None:
    given, prompts = margins(400, 2.0), np.repeat(np.arange(100), 4)
    scaled, reason = cross_fitted(given, prompts)
    even = prompts % 2 == 0
    assert reason == ""
    np.testing.assert_allclose(scaled[even], given[even] / fit_temperature(given[~even]).value)
    np.testing.assert_allclose(scaled[~even], given[~even] / fit_temperature(given[even]).value)
    assert "half of the prompts: 48 pairs" in cross_fitted(given[:96], prompts[:96])[1]


def test_an_overconfident_scorer_is_calibrated_by_its_temperature_and_a_calibrated_one_hardly_changed() -> None:
    for temperature in (4.0, 0.3):
        given = margins(4000, temperature, seed=1)
        scaled, _ = cross_fitted(given, np.arange(4000))
        assert calibration_error(given) > 0.08
        assert calibration_error(scaled) < 0.03
    calibrated = margins(4000, 1.0, seed=2)
    scaled, _ = cross_fitted(calibrated, np.arange(4000))
    assert abs(calibration_error(scaled) - calibration_error(calibrated)) < 0.02


def test_the_calibration_error_is_the_mean_gap_of_the_bins() -> None:
    given = margins(500, 1.5)
    bins = reliability(given, np.zeros(500))
    assert calibration_error(given) == pytest.approx(sum(b.pairs * abs(b.confidence - b.accuracy) for b in bins) / 500)


def test_the_report_of_pairs_has_the_temperature_or_why_not() -> None:
    given, prompts = margins(300, 2.0), np.arange(300)
    found = temperature_metrics(given, np.zeros(300), prompts)
    assert found.metrics["temperature"] == fit_temperature(given).value
    assert found.metrics["ece_calibrated"] == calibration_error(cross_fitted(given, prompts)[0])
    assert found.undefined == {}
    few = temperature_metrics(given[:60], np.zeros(60), prompts[:60])
    assert few.metrics.keys() == {"temperature"}
    assert few.undefined.keys() == {"ece_calibrated"}
