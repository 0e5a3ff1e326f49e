"""The baseline by length alone: its direction is chosen on training pairs, its accuracy is of held-out ones."""

import numpy as np
import pytest

from lmgym.training.length_rule import LengthRule
from lmgym.training.probes import Report

TRAIN = np.array([[3, 9], [2, 5], [8, 1], [4, 4]])  # the shorter reply wins 2 of 3
HELD_OUT = np.array([[3, 9], [5, 2], [7, 1], [4, 4]])


def test_the_direction_is_that_of_the_training_pairs() -> None:
    assert LengthRule.fitted(TRAIN) == LengthRule(shorter_wins=True)
    assert LengthRule.fitted(TRAIN[:, ::-1]) == LengthRule(shorter_wins=False)
    assert LengthRule(True).right(HELD_OUT).tolist() == [1, 0, 0, 0.5]
    assert LengthRule(False).right(HELD_OUT).tolist() == [0, 1, 1, 0.5]
    assert "the shorter wins" in LengthRule(True).shown["length_accuracy"]
    assert "the longer wins" in LengthRule(False).shown["length_accuracy"]


def test_the_difference_from_the_rule_is_paired_and_over_prompts() -> None:
    right = np.array([True, True, True, False])
    found = LengthRule(True).added_to(Report({"accuracy": 0.75}, {"x": "y"}), right, HELD_OUT, np.arange(4))
    assert found.metrics["length_accuracy"] == 0.375
    assert found.metrics["accuracy_above_length"] == pytest.approx(0.375)  # 0, 1, 1, -.5
    low, high = (found.metrics[f"accuracy_above_length_{end}"] for end in ("low", "high"))
    assert -1 <= low < 0.375 < high <= 1
    assert found.metrics["accuracy"] == 0.75
    assert found.undefined == {"x": "y"}
    one = LengthRule(True).added_to(Report({}, {}), right, HELD_OUT, np.zeros(4))
    assert one.metrics.keys() == {"length_accuracy", "accuracy_above_length"}, "one prompt has no interval"
    assert "accuracy_above_length_low" in one.undefined
