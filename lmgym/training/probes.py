"""What every stage's evaluations during training have in common."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch  # metrics that need none are imported without it


@dataclass(frozen=True)
class Report:
    """Metrics that are defined, all finite, and the names of those that are not, each with the reason."""

    metrics: dict[str, float]
    undefined: dict[str, str]


class Probe(Protocol):
    """An evaluation of the model as it is now."""

    report: Report
    """of the last measurement"""

    @property
    def loss(self) -> str:
        """The metric that is lower where the model is better, as its loss; empty: there is none."""
        ...

    @property
    def shown(self) -> Mapping[str, str]:
        """Metrics of the table at a run's end, with what they are called there."""
        ...

    def measure(self, model: "torch.nn.Module", device: "torch.device") -> dict[str, float]:
        """Metrics by name; called on all ranks, with the model in eval mode."""
        ...


def join_reports(reports: Mapping[str, Report]) -> Report:
    """One report of all probes' figures by their full names."""
    return Report(
        {full_name(probe, name): value for probe, report in reports.items() for name, value in report.metrics.items()},
        {full_name(probe, name): why for probe, report in reports.items() for name, why in report.undefined.items()},
    )


def full_name(probe: str, metric: str) -> str:
    """A metric's name among all probes'; the held-out examples' have no prefix."""
    return f"{probe}/{metric}" if probe else metric
