"""A baseline for pairs: one rule by length alone, chosen on the training pairs and measured on the held-out ones.

People's choices correlate with length, so an accuracy says little until it stands beside that of such a rule.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lmgym.statistics import mean
from lmgym.training.probes import Report

Lengths = NDArray[np.int64]
BASELINE, ABOVE = "length_accuracy", "accuracy_above_length"


@dataclass(frozen=True)
class LengthRule:
    """The reply that is shorter wins each pair, or the one that is longer."""

    shorter_wins: bool

    @staticmethod
    def fitted(lengths: Lengths) -> "LengthRule":
        """The rule that is right in more of the training pairs; `lengths` [pairs, 2] of chosen and rejected replies."""
        return LengthRule(bool(np.sign(lengths[:, 1] - lengths[:, 0]).sum() >= 0))

    @property
    def shown(self) -> Mapping[str, str]:
        """Labels of its metrics in the table at a run's end."""
        side = "shorter" if self.shorter_wins else "longer"
        return {
            BASELINE: f"length alone: the {side} wins",
            ABOVE: "accuracy above length alone",
        }

    def right(self, lengths: Lengths) -> NDArray[np.float64]:
        """[pairs]: 1 where the rule is right, 1/2 where both replies are as long."""
        differences = lengths[:, 1] - lengths[:, 0]
        return (np.sign(differences if self.shorter_wins else -differences) + 1) / 2

    def added_to(self, report: Report, right: NDArray, lengths: Lengths, prompts: NDArray) -> Report:
        """The report with the rule's accuracy on its pairs, and the difference of `right` from it over prompts."""
        baseline = self.right(lengths)
        difference = Report.of(ABOVE, mean(right - baseline, prompts, (-1, 1)), "prompt")
        metrics = {**report.metrics, BASELINE: float(baseline.mean()), **difference.metrics}
        return replace(report, metrics=metrics, undefined={**report.undefined, **difference.undefined})
