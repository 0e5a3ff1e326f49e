"""The figures of a run: the metric that it is listed by, before and after training, and its cost."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lmgym.report.known_metrics import MAIN_METRICS, metric_of

NONE_YET = "none yet"
"""stands for the result of a run whose trained model was not evaluated"""
Point = tuple[float, ...]
"""(update, value), or (update, value, low, high)"""


@dataclass(frozen=True)
class MainMetric:
    """A metric of metrics.jsonl, its label, and whether a better model has more of it."""

    name: str
    label: str
    higher_is_better: bool


class BeforeAndAfter(NamedTuple):
    """A figure before the first update, and that of the model that is kept; None where it was not measured."""

    before: Point | None
    after: Point | None


NOT_MEASURED = BeforeAndAfter(None, None)


def main_metric(names: Collection[str], stage: str = "") -> MainMetric | None:
    """The main metric of a run that has logged metrics of these names; None before its first evaluation."""
    for name in MAIN_METRICS:
        if name in names and (metric := metric_of(name, stage)):
            return MainMetric(name, metric.short or metric.title, metric.better == "higher")
    return None


def before_and_after(points: Sequence[Point], kept: int | None = None) -> BeforeAndAfter:
    """The figures of a metric's points in their order; `kept` is the update of the model that is kept, None: the last.

    What was measured before the first update is of the model that training began from, and never a result.
    """
    until = math.inf if kept is None else kept
    before = next((point for point in points if point[0] <= 0), None)
    return BeforeAndAfter(before, next((point for point in reversed(points) if 0 < point[0] <= until), None))


def after_update(update: float) -> str:
    """`after update 1,200`, or `before training`."""
    return f"after update {update:,.0f}" if update > 0 else "before training"


def why_none(outcome: str, updates: float) -> str:
    """Why a run has no result: how it ended, in words, after so many updates."""
    count = f"{updates:,.0f} update{'' if updates == 1 else 's'}"
    return f"{outcome} after {count}, before an evaluation of the trained model"


def total_cost(record: Mapping[str, Any]) -> dict[str, float]:
    """Launches, seconds, CPU seconds and GPU seconds of a run up to a record of it, with those that it resumed."""
    former = record.get("former")
    seconds = _positive(record.get("seconds"))
    own = {
        "launches": 1,
        "seconds": seconds,
        "cpu_seconds": _positive(record.get("cpu_seconds")),
        "gpu_seconds": seconds * _positive(record.get("gpus")),
    }
    before = former if isinstance(former, Mapping) else {}
    return {name: round(value + _positive(before.get(name)), 3) for name, value in own.items()}


def _positive(value: object) -> float:
    """A number of a file that anybody may have written; 0 for anything else."""
    return value if isinstance(value, int | float) and 0 < value < 1e15 else 0
