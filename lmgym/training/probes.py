"""Evaluations during training, of every stage."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from lmgym.scoring.alarm import Reading
from lmgym.statistics import Estimate, notes

if TYPE_CHECKING:
    import torch  # metrics that need none are imported without it


@dataclass(frozen=True)
class Report:
    """Finite metrics, the reasons why others are not defined, and sentences to print below a table of them.

    `readings` are means by prompt of metrics that are higher for a better model.
    """

    metrics: dict[str, float]
    undefined: dict[str, str]
    notes: tuple[str, ...] = ()
    readings: Mapping[str, Reading] = field(default_factory=dict)

    @staticmethod
    def of(name: str, found: Estimate, unit: str) -> "Report":
        """`name` with `name_low` and `name_high`, the ends of its interval; `unit` names an independent unit."""
        values = found.named(name)
        metrics = {key: value for key, value in values.items() if value is not None}
        return Report(metrics, dict.fromkeys(values.keys() - metrics, found.reason), tuple(notes([found], unit)))


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
        tuple(f"{probe}: {note}" if probe else note for probe, report in reports.items() for note in report.notes),
        {full_name(probe, name): one for probe, report in reports.items() for name, one in report.readings.items()},
    )


def full_name(probe: str, metric: str) -> str:
    """A metric's name with its probe as prefix; metrics of held-out examples have none."""
    return f"{probe}/{metric}" if probe else metric
