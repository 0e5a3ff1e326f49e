"""The table at a run's end, with the figures before step 1, and the warnings of a held-out loss that rises."""

import contextlib
import io
from dataclasses import dataclass, field

import pytest
from launching import words

from lmgym.training.model_card import figures_table, policy_card
from lmgym.training.probes import Report, join_reports
from lmgym.training.reporting import overfitting, rising, show_table


@dataclass
class Measured:
    """A probe that has measured."""

    report: Report
    loss: str = "loss"
    shown: dict[str, str] = field(default_factory=lambda: {"accuracy": "accuracy", "loss": "mean loss", "tokens": "t"})

    def measure(self, model, device):
        raise AssertionError("nothing is measured for a table")


HELD_OUT = Measured(Report({"accuracy": 0.75, "accuracy_low": 0.7, "accuracy_high": 0.8, "loss": 0.5, "tokens": 3}, {}))
APART = Measured(Report({"loss": 2.25}, {"tokens": "nothing was said"}))


def shown(before: dict[str, float]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        probes = {"": HELD_OUT, "apart": APART}
        show_table("held out", probes, join_reports({name: probe.report for name, probe in probes.items()}), before)
    return words(printed.getvalue())


def test_a_figure_of_before_step_1_stands_beside_the_last_one_with_the_change() -> None:
    before = {"accuracy": 0.5, "accuracy_low": 0.4, "accuracy_high": 0.625, "loss": 0.75, "apart/loss": 2.125}
    said = shown(before)
    assert "measure ┃ before ┃ after (95% interval) ┃ change" in said
    assert "accuracy │ 0.500 │ 0.750 (0.700 to 0.800) │ +0.250" in said
    assert "mean loss │ 0.750 │ 0.500 │ -0.250" in said
    assert "apart: mean loss │ 2.125 │ 2.250 │ +0.125" in said
    assert "│ t │ │ 3.000 │ │" in said, "what was not defined then has no change"
    assert "apart/tokens: not defined here, nothing was said" in said


def test_a_run_that_was_not_measured_before_has_one_column() -> None:
    said = shown({})
    assert "measure ┃ value" in said
    assert "mean loss │ 0.500 │" in said


def test_a_model_card_has_both_figures_where_there_are_both() -> None:
    assert figures_table({"loss": 0.5, "ties": 0.0}, {"loss": 0.75}).splitlines() == [
        "| measure | before training | after |", "|---|---|---|", "| loss | 0.7500 | 0.5000 |", "| ties |  | 0.0000 |",
    ]  # fmt: skip
    assert figures_table({"loss": 0.5}, {}).splitlines() == ["| measure | value |", "|---|---|", "| loss | 0.5000 |"]


def test_a_model_card_names_a_base_of_the_hub_and_no_folder_and_says_how_to_serve(tmp_path) -> None:
    whole = policy_card("chat", "Qwen/Qwen3-0.6B@main", "SFT.", "", is_adapter=False)
    assert "\nbase_model: Qwen/Qwen3-0.6B\n" in whole
    assert "`vllm serve path/to/this/folder`" in whole
    adapter = policy_card("chat", str(tmp_path), "SFT.", "", is_adapter=True)
    assert "base_model:" not in adapter
    assert f"`vllm serve {tmp_path} --enable-lora --lora-modules NAME=path/to/this/folder`" in adapter


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ({0: 0.693, 20: 0.661, 40: 0.737, 60: 0.777}, "lowest after update 20: 0.661, and is 0.777 after update 60"),
        ({0: 0.5, 20: 0.75}, "lowest before training: 0.5, and is 0.75 after update 20"),
    ],
)
def test_a_last_model_that_is_worse_than_an_earlier_one_is_told(losses: dict[int, float], best: str) -> None:
    [line] = overfitting(losses, "the saved model is another")
    assert line.startswith("warning: the held-out loss was ")
    assert best in line
    assert "; the saved model is another (" in line


@pytest.mark.parametrize("losses", [{}, {0: 0.7, 20: 0.6}, {0: 0.7, 10: 0.60001, 20: 0.60002}])
def test_a_last_model_that_is_the_best_needs_no_line(losses: dict[int, float]) -> None:
    assert overfitting(losses, "") == []


def test_a_loss_that_rises_at_three_evaluations_in_a_row_is_told_once() -> None:
    course = [0.7, 0.6, 0.61, 0.62, 0.63, 0.64, 0.5, 0.51, 0.52, 0.53]
    losses: dict[int, float] = {}
    told = {}
    for number, loss in enumerate(course):
        losses[10 * number] = loss
        if line := rising(losses):
            [told[10 * number]] = line
    assert list(told) == [40, 90]
    assert told[40].startswith("warning: the held-out loss rose at 3 evaluations in a row, up to update 40: 0.6, 0.61")


@pytest.mark.parametrize("course", [[], [0.6, 0.7, 0.8], [0.6, 0.7, 0.8, 0.8], [0.6, 0.60001, 0.60002, 0.60003]])
def test_fewer_rises_and_those_behind_the_shown_digits_are_not_told(course: list[float]) -> None:
    assert rising(dict(enumerate(course))) == []
