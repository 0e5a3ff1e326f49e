"""Metrics of a scorer's margins over pairs: accuracy with its interval, calibration, and length bias.

Design decisions:
- Pure numpy over one entry a pair, gathered from all ranks without duplicates: nothing here is a mean of batch means.
- A metric that the data does not define is named with its reason instead of being NaN.
- Pairs of one prompt share their difficulty, so intervals are over prompts rather than rows.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lmgym.aids import aid
from lmgym.report.calibration import calibration_error, cross_fitted, fit_temperature
from lmgym.statistics import share
from lmgym.training.probes import Report
from reward_models.metrics.rank_statistics import Floats, finite_column, pearson, spearman


def pair_metrics(
    chosen: ArrayLike,
    rejected: ArrayLike,
    prompt_ids: ArrayLike,
    chosen_lengths: ArrayLike,
    rejected_lengths: ArrayLike,
) -> Report:
    """Metrics of scores[pairs] of chosen and rejected replies; lengths are of the replies, in tokens.

    `accuracy` counts a tie as wrong (RewardBench, Lambert et al. 2024) and `ties` is their share;
    `accuracy_low` and `accuracy_high` are its 95% interval over prompts. `margin_mean` and `margin_std` (over the pairs
    at hand, ddof=0) are in the scorer's units. Read as Bradley-Terry, p = sigmoid(chosen - rejected): `nll` is the mean
    of -log p in nats, `brier` the mean of (1 - p)^2, `ece` the mean over pairs of |confidence - accuracy| of their bin
    of `reliability`.
    `score_length_correlation` (Pearson) and `score_length_spearman` are over all 2 * pairs replies.
    `prompt_ids` are numbers or hashes rather than texts: numpy gives every string the width of the longest.
    Raises ValueError for no pairs, arrays of different lengths and non-finite scores.
    """
    won, lost = finite_column("chosen", chosen), finite_column("rejected", rejected)
    longer = finite_column("chosen_lengths", chosen_lengths), finite_column("rejected_lengths", rejected_lengths)
    prompts = np.unique(np.asarray(prompt_ids), return_inverse=True)[1]
    _check_pairs(chosen=won, rejected=lost, prompt_ids=prompts, chosen_lengths=longer[0], rejected_lengths=longer[1])
    right = won > lost
    accuracy = Report.of("accuracy", share(right, prompts), "prompt")
    metrics = {**accuracy.metrics, "ties": (won == lost).mean()}
    metrics |= {"pairs": len(won), "prompts": prompts.max() + 1}
    metrics |= _margin_metrics(won, lost)
    undefined = accuracy.undefined
    for part, missing in (
        _length_correlations(np.concatenate([won, lost]), np.concatenate(longer)),
        _length_controlled(right, *longer),
    ):
        metrics |= part
        undefined |= missing
    report = Report({name: float(value) for name, value in metrics.items()}, undefined, accuracy.notes)
    assert all(np.isfinite(value) for value in report.metrics.values()), report
    return report


def _check_pairs(**columns: NDArray) -> None:
    shapes = {name: column.shape for name, column in columns.items()}
    if len(set(shapes.values())) > 1 or columns["chosen"].ndim != 1:
        raise ValueError(f"arrays of shapes {shapes}; needed: one entry a pair in each; gather all in the same way")
    if not len(columns["chosen"]):
        raise ValueError("0 pairs; needed at least 1; check the split and the filter of the evaluation rows")


def _sigmoid(x: Floats) -> Floats:
    return np.exp(-np.logaddexp(0, -x))


def _margin_metrics(won: Floats, lost: Floats) -> dict[str, float]:
    margins = won - lost
    return {
        "margin_mean": margins.mean(),
        "margin_std": margins.std(),
        "nll": np.logaddexp(0, -margins).mean(),
        "brier": np.square(_sigmoid(-margins)).mean(),
        "ece": calibration_error(margins),
    }


@aid("the fitted temperature", lambda: Report({}, {}))
def temperature_metrics(chosen: ArrayLike, rejected: ArrayLike, prompt_ids: ArrayLike) -> Report:
    """`temperature`, fitted on all pairs; `ece_calibrated`, each pair at the temperature of the other half of prompts.

    See lmgym/report/calibration.py. What is undefined has its reason.
    """
    margins = finite_column("chosen", chosen) - finite_column("rejected", rejected)
    fit, (scaled, reason) = fit_temperature(margins), cross_fitted(margins, prompt_ids)
    metrics, undefined = dict[str, float](), dict[str, str]()
    if fit.value is None:
        undefined["temperature"] = fit.reason
    else:
        metrics["temperature"] = fit.value
    if reason:
        undefined["ece_calibrated"] = reason
    else:
        metrics["ece_calibrated"] = calibration_error(scaled)
    return Report(metrics, undefined)


def _length_correlations(scores: Floats, lengths: Floats) -> tuple[dict, dict]:
    names = ("score_length_correlation", "score_length_spearman")
    for what, values in (("length", lengths), ("score", scores)):
        # not the standard deviation: rounding gives a constant one of 1e-17
        if values.max() == values.min():
            return {}, dict.fromkeys(names, f"every reply has the same {what}, {values[0]:g}")
    return {names[0]: pearson(scores, lengths), names[1]: spearman(scores, lengths)}, {}


def _length_controlled(right: NDArray[np.bool_], chosen: Floats, rejected: Floats) -> tuple[dict, dict]:
    metrics: dict[str, float] = {}
    undefined: dict[str, str] = {}
    for side, where in (("chosen", chosen > rejected), ("rejected", rejected > chosen)):
        metrics[f"pairs_longer_{side}"] = where.sum()
        if where.any():
            metrics[f"accuracy_longer_{side}"] = right[where].mean()
        else:
            undefined[f"accuracy_longer_{side}"] = f"no pair whose {side} reply is the longer one"
    return metrics, undefined
