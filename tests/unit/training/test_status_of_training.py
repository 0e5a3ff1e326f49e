"""The figures and the alarm of a training's status line."""

from types import SimpleNamespace

import pytest
from transformers import TrainerControl, TrainerState

from lmgym.training.callbacks import LogAtEvaluations, ShowStatus


@pytest.mark.parametrize(
    ("losses", "rises"),
    [
        ({}, False),
        ({0: 0.7}, False),
        ({0: 0.7, 20: 0.6, 40: 0.5}, False),
        ({0: 0.7, 20: 0.6, 40: 0.65}, True),
        ({0: 0.7, 20: 0.60001, 40: 0.60002}, False),  # equal as they are printed
    ],
)
def test_a_held_out_loss_above_its_lowest_is_an_alarm_before_all_figures(losses: dict[int, float], rises: bool) -> None:
    status = ShowStatus()
    status.watch(losses)
    figures = {"train/tokens_per_second": 1234.5, "train/loss": 0.12345, "epoch": 1.0}
    status.on_log(None, SimpleNamespace(global_step=1), None, figures)
    alarm = ["ALARM: the held-out loss rises"] if rises else []
    assert status._shown() == [*alarm, "1,234 tokens/s", "loss 0.123"]


def test_figures_stay_until_newer_ones_come_and_an_alarm_ends_with_its_cause() -> None:
    status, state = ShowStatus(), SimpleNamespace(max_steps=9, global_step=4)
    status.on_train_begin(None, state, None)
    status.on_log(None, state, None, {"train/loss": 0.5, "eval/accuracy": 0.75})
    status.watch({2: 0.1, 4: 0.2})
    status.on_log(None, state, None, {"train/loss": 0.25})
    assert status._shown() == ["ALARM: the held-out loss rises", "loss 0.25", "accuracy of pairs 0.75 after update 4"]
    status.watch({2: 0.1, 4: 0.2, 6: 0.05})
    assert status._shown() == ["loss 0.25", "accuracy of pairs 0.75 after update 4"]


@pytest.mark.parametrize(
    ("due", "evaluates", "step", "logs"),
    [(False, False, 4, False), (True, False, 4, True), (False, True, 4, True), (False, False, 6, True)],
)
def test_training_metrics_are_logged_where_due_at_evaluations_and_at_the_end(
    due: bool, evaluates: bool, step: int, logs: bool
) -> None:
    control = TrainerControl(should_log=due, should_evaluate=evaluates)
    LogAtEvaluations().on_step_end(None, TrainerState(global_step=step, max_steps=6), control)
    assert control.should_log == logs
