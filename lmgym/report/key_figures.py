"""The figures by which runs are listed: the one metric of their stage, and their cost."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class MainMetric:
    """A metric of metrics.jsonl, its label, and whether a better model has more of it."""

    name: str
    label: str
    higher_is_better: bool


MAIN_METRICS = (
    MainMetric("eval/reward/mean", "reward", True),  # PPO
    MainMetric("eval/perplexity", "perplexity", False),  # SFT
    MainMetric("eval/accuracy", "accuracy", True),  # reward models on pairs, rankings and classes
    MainMetric("eval/spearman", "Spearman", True),  # reward models on numbers
    MainMetric("eval/auc", "AUC", True),  # KTO
)
"""at most one of them is measured by a run of any stage; the first counts"""


def main_metric(names: Collection[str]) -> MainMetric | None:
    """The main metric of a run that has logged metrics of these names; None before its first evaluation."""
    return next((metric for metric in MAIN_METRICS if metric.name in names), None)


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
