"""Evaluations during training, of every stage."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch  # metrics that need none are imported without it


@dataclass(frozen=True)
class Report:
    """Finite metrics, and the reasons why others are not defined."""

    metrics: dict[str, float]
    undefined: dict[str, str]


class Probe(Protocol):
    """An evaluation of the model during training."""

    report: Report
    """of the last measurement"""

    @property
    def loss(self) -> str:
        """Name of the metric that is lower for a better model; empty if there is none."""

    @property
    def shown(self) -> Mapping[str, str]:
        """Metrics of the table at a run's end, with their labels."""

    def measure(self, model: "torch.nn.Module", device: "torch.device") -> dict[str, float]:
        """Metrics by name; called on all ranks, with the model in eval mode."""


def join_reports(reports: Mapping[str, Report]) -> Report:
    """One report of all probes' metrics by full name."""
    return Report(
        {full_name(probe, name): value for probe, report in reports.items() for name, value in report.metrics.items()},
        {full_name(probe, name): why for probe, report in reports.items() for name, why in report.undefined.items()},
    )


def full_name(probe: str, metric: str) -> str:
    """A metric's name with its probe as prefix; metrics of held-out examples have none."""
    return f"{probe}/{metric}" if probe else metric
