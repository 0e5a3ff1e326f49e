"""Intervals of a suite's figures over prompts, and the paired comparison of scorers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lmgym.apps.audit.protocols import Measure, Observations, ties_score
from lmgym.statistics import Bounds, Estimate, Floats, Ratio, holm, jackknife, sign_flips


@dataclass(frozen=True)
class Difference:
    """The second scorer's figure less the first's, and the p-value before and after Holm's correction."""

    first: str
    second: str
    figure: str
    estimate: Estimate
    p: float
    adjusted: float = 1.0


def estimate(measure: Measure, seen: Observations) -> Estimate:
    """The figure with its 95% interval over prompts."""
    if not measure.ties:
        return _weighted_mean(measure.weights, seen.values, seen.units, (0, 1))
    value, without = _without(measure, seen)
    return jackknife(value, without, _rows(measure, seen)) if len(without) > 1 else _alone(value, measure, seen)


def compare(outcomes: Mapping[str, Observations], measures: Sequence[Measure]) -> list[Difference]:
    """Every pair of scorers on every overall figure and section, all tested together (Holm 1979)."""
    names = list(outcomes)
    found = [
        _difference(names[i], names[j], measure, outcomes)
        for i in range(len(names))
        for j in range(i + 1, len(names))
        for measure in measures
        if measure.kind in ("overall", "section")
    ]
    adjusted = holm([difference.p for difference in found]) if found else []
    return [replace(difference, adjusted=p) for difference, p in zip(found, adjusted, strict=True)]


def _difference(first: str, second: str, measure: Measure, outcomes: Mapping[str, Observations]) -> Difference:
    a, b = outcomes[first], outcomes[second]
    if not measure.ties:
        found = _weighted_mean(measure.weights, b.values - a.values, a.units, (-1, 1))
        sums = _sums(measure.weights * (b.values - a.values), a.units, measure.weights > 0)
        return Difference(first, second, measure.name, found, sign_flips(sums))
    (value_a, without_a), (value_b, without_b) = (_without(measure, seen) for seen in (a, b))
    value, without = value_b - value_a, without_b - without_a
    if len(without) < 2:
        return Difference(first, second, measure.name, _alone(value, measure, a), 1.0)
    # what each unit adds to the difference: the jackknife's pseudovalues
    adds = len(without) * value - (len(without) - 1) * without
    return Difference(first, second, measure.name, jackknife(value, without, _rows(measure, a)), sign_flips(adds))


def _weighted_mean(weights: Floats, values: Floats, units: np.ndarray, bounds: Bounds) -> Estimate:
    """The weighted mean over rows; equal weights are 1, for which a share has Wilson's interval."""
    there = weights > 0
    scaled = weights / weights.max() if there.any() else weights
    numerator, denominator = _sums(scaled * values, units, there), _sums(scaled, units, there)
    return replace(Ratio(numerator, denominator, bounds).estimate, rows=int(there.sum()))


def _sums(values: Floats, units: np.ndarray, there: np.ndarray) -> Floats:
    """Sums of the values that are there by unit."""
    codes = np.unique(units[there].astype(str), return_inverse=True)[1]
    return np.bincount(codes, values[there]).astype(np.float64)


def _without(measure: Measure, seen: Observations) -> tuple[float, Floats]:
    """The figure, and that without each prompt: first those of the weighted mean, then those of Ties."""
    there = measure.weights > 0
    prompts = list(seen.ties.values())
    ties = ties_score(prompts)
    without_ties = np.array([ties_score(prompts[:i] + prompts[i + 1 :]) for i in range(len(prompts))])
    if not there.any():
        return ties, without_ties
    sums = _sums(measure.weights * seen.values, seen.units, there)
    weights = _sums(measure.weights, seen.units, there)
    value = sums.sum() / weights.sum()
    left = weights.sum() - weights
    without = np.divide(sums.sum() - sums, left, out=np.full(len(sums), value), where=left > 0)
    share = measure.ties
    whole = (1 - share) * value + share * ties
    return whole, np.concatenate([(1 - share) * without + share * ties, (1 - share) * value + share * without_ties])


def _rows(measure: Measure, seen: Observations) -> int:
    return int((measure.weights > 0).sum()) + sum(
        (p.ref is not None) + (p.tied is not None) for p in seen.ties.values()
    )


def _alone(value: float, measure: Measure, seen: Observations) -> Estimate:
    return Estimate(value, None, None, 1, _rows(measure, seen), "one independent unit is too few for an interval")
