"""The choice among evaluations: who chooses, by how much the best flatters, and what the others say of it."""

import json

import numpy as np
import pytest

from lmgym.scoring.alarm import Reading
from lmgym.statistics import FEW
from lmgym.training.choice import Choice

MANY = [f"prompt {i:03d}" for i in range(2 * FEW)]


def reading(values, names=MANY) -> Reading:
    return Reading.of([float(value) for value in values], names)


def test_every_other_prompt_chooses_and_the_others_measure_what_was_chosen() -> None:
    choice = Choice()
    assert choice.add(0, reading(range(60))) is None
    assert choice.add(5, reading([1.0, -1.0] * FEW)) == 1.0
    assert choice.add(10, reading([0.5, 4.0, 0.5, 6.0] * (FEW // 2))) == 0.5
    assert (choice.measured(10).value, choice.measured(10).units) == (5.0, FEW)
    assert choice.words(5) == ", of which about 0 is the choice among 2 evaluations; on the 30 prompts that did not " \
        "choose it: -1 (–)"  # fmt: skip
    found = choice.record(10)
    assert (found["evaluations"], found["prompts_that_choose"], found["flattery"]) == (2, FEW, 0.0)
    assert found["on_other_prompts"]["value"] == 5.0
    assert found["on_other_prompts"]["low"] < 5 < found["on_other_prompts"]["high"]


def test_all_of_few_prompts_choose_and_nothing_is_said_of_others() -> None:
    choice, names = Choice(), MANY[:-1]
    choice.add(0, reading(range(59), names))
    assert choice.add(5, reading([1.0] * 58 + [60.0], names)) == 2.0
    assert choice.words(5) == "; all 59 prompts chose, with 60 or more half would measure what they choose"
    assert choice.record(5)["on_other_prompts"] is None
    assert choice.words(0) == choice.words(10) == "", "of an evaluation that is not known"


def test_a_prompt_that_fails_keeps_its_side_and_a_look_without_scores_chooses_nothing() -> None:
    choice = Choice()
    choice.add(0, reading(range(60)))
    lacking = reading([2.0] * 59, MANY[1:])  # one that chooses
    assert choice.add(5, lacking) == 2.0
    assert len(choice.held_out) == choice.measured(5).units == FEW
    assert choice.add(10, Reading.of([], [])) is None
    assert choice.add(15, reading([1.0] * 60)) == 1.0
    assert choice.flattery == 0.0, "over the 29 prompts that both looks with scores have"
    assert "on the 0 prompts that did not choose it: –" in choice.words(10)


def test_a_monitor_that_fails_before_step_1_has_its_halves_from_the_first_look_with_scores() -> None:
    choice = Choice()
    assert choice.add(0, Reading.of([], [])) is None
    assert choice.add(5, reading([1.0, -1.0] * FEW)) == 1.0
    assert choice.add(10, reading([2.0, -1.0] * FEW)) == 2.0
    assert choice.measured(10).value == -1


def test_of_looks_that_are_equal_the_flattery_is_that_of_the_highest_and_other_prompts_show_none() -> None:
    rng = np.random.default_rng(0)
    chosen, flattered, others = [], [], []
    for _ in range(200):
        choice = Choice()
        for update in range(10):
            own = choice.add(update, reading(rng.standard_normal(60)))
            assert (own is None) == (update == 0)
        means = {u: float(np.mean(look.values[::2])) for u, look in choice.looks.items()}
        best = max(means, key=means.__getitem__)
        chosen.append(means[best])
        flattered.append(choice.flattery)
        others.append(choice.measured(best).value)
    expected = 1.485 / np.sqrt(FEW)  # the mean of the highest of nine normal numbers
    assert np.mean(chosen) == pytest.approx(expected, abs=0.03)
    assert np.mean(flattered) == pytest.approx(expected, abs=0.03)
    assert np.mean(others) == pytest.approx(0, abs=0.03)


def test_the_state_comes_back_from_json() -> None:
    first, second = Choice(), Choice()
    for update in (0, 5, 10):
        first.add(update, reading(np.random.default_rng(update).standard_normal(60)))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second == first
    assert second.words(10) == first.words(10)
    second.load_state_dict({})
    assert second == Choice()
