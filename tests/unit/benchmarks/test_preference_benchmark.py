"""Losses over preferences are those that TRL's trainers computed of the same log-probabilities."""

import json

import preference_formulas
import pytest
from launching import scripts_are_forked
from preference_formulas import CASES, Case

STORED = json.loads(preference_formulas.RESULTS.read_text())


@pytest.fixture(scope="module")
def ours() -> dict:
    """Our numbers of every case."""
    with scripts_are_forked():
        return preference_formulas.run("ours_preference_formulas")["cases"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_loss_over_preferences_is_the_one_that_TRL_computed(case: Case, ours: dict) -> None:
    found = preference_formulas.differences(STORED["cases"][case.name], ours[case.name])
    assert max(found.values()) <= preference_formulas.TOLERANCE


def test_every_case_is_another_loss_to_TRL() -> None:
    losses = [STORED["cases"][case.name]["loss"] for case in CASES]
    assert len({round(loss, 5) for loss in losses}) == len(CASES)
    assert STORED["versions"]["trl"] == "1.16.0"
