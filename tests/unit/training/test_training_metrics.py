"""The means and rates of a line of metrics, against hand-computed numbers."""

import pytest
import torch

from lmgym.training.metrics import TrainingMetrics


def test_tallies_are_means_over_items_and_the_loss_is_a_mean_over_updates() -> None:
    metrics = TrainingMetrics()
    for loss, right in ((1.0, 3.0), (2.0, 1.0)):
        metrics.add({"loss": torch.tensor(loss), "accuracy": torch.tensor(right)}, items=4, tokens=50)
    line = metrics.line(step=2)
    assert (line["train/accuracy"], line["train/loss"]) == (4 / 8, 3 / 2)
    assert line["train/tokens_per_second"] / line["train/items_per_second"] == pytest.approx(100 / 8)
    metrics.add({"loss": torch.tensor(5.0), "accuracy": torch.tensor(2.0)}, items=2, tokens=9)
    line = metrics.line(step=3)
    assert (line["train/accuracy"], line["train/loss"]) == (1.0, 5.0)
