"""The one metric by which runs of a stage are listed and compared."""

from collections.abc import Collection
from dataclasses import dataclass


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
)
"""at most one of them is measured by a run of any stage; the first counts"""


def main_metric(names: Collection[str]) -> MainMetric | None:
    """The main metric of a run that has logged metrics of these names; None before its first evaluation."""
    return next((metric for metric in MAIN_METRICS if metric.name in names), None)
