"""The best evaluation, the early end of a run, and what a checkpoint keeps of both."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lmgym.config import TrainerConfig
from lmgym.errors import InputError
from lmgym.runs.run import Run
from lmgym.training.best import BestModel, check_best, lower_is_better
from lmgym.training.metrics import TrainingMetrics
from lmgym.training.probes import Report


@dataclass
class FakeTrainer:
    """The part of a trainer that `BestModel` uses; `measure` is an evaluation after so many updates."""

    best: BestModel
    run: Run
    figures: Report = field(default_factory=lambda: Report({}, {}))
    losses: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state, self.control = SimpleNamespace(global_step=0, max_steps=100), SimpleNamespace()
        self.args, self.before, self.supervisor = SimpleNamespace(seed=0), {"nll": 0.7}, None
        self.status = SimpleNamespace(doing=lambda _: None, line=SimpleNamespace(total=100))
        self.metrics, self.probes = TrainingMetrics(), {"": SimpleNamespace(loss="nll")}
        self.control.should_training_stop = False

    def report(self) -> Report:
        return self.figures

    def measure(self, step: int, **metrics: float) -> None:
        self.state.global_step, self.figures = step, Report(metrics, {"auc": "one class"})
        if "nll" in metrics:
            self.losses[step] = metrics["nll"]
        self.best.after_evaluation(self)  # type: ignore[arg-type]


@pytest.fixture
def saved() -> list[tuple[str, int]]:
    """The name of each model that was written, and after which update."""
    return []


@pytest.fixture
def trainer_of(tmp_path: Path, saved: list):
    """A trainer that keeps the best by a metric."""

    def make(metric: str | None = "loss", patience: int = 0) -> FakeTrainer:
        save: Any = lambda trainer, name, which: saved.append((name, trainer.state.global_step))  # noqa: E731
        run = Run.start(tmp_path / f"run{len(list(tmp_path.iterdir()))}", {}, 0, tracking="none")
        return FakeTrainer(BestModel(metric, patience, save), run)

    return make


def evaluation(trainer: FakeTrainer) -> dict[str, Any]:
    return json.loads((trainer.run.folder / "evaluation.json").read_text())


def finish(trainer: FakeTrainer) -> str:
    trainer.best.finish(trainer)  # type: ignore[arg-type]
    return trainer.best.closing(trainer)  # type: ignore[arg-type]


@pytest.mark.parametrize("metric", ["loss", "nll", "ece", "brier", "perplexity"])
def test_losses_and_errors_are_better_lower(metric: str) -> None:
    assert lower_is_better(metric) is True


@pytest.mark.parametrize(
    "metric", ["accuracy", "token_accuracy", "kendall_tau", "top_2_acc", "retry/retry_auc", "retention/d3_auc_new",
               "gold/gold_spearman", "samples/score/loss"],
)  # fmt: skip
def test_agreement_and_scores_are_better_higher(metric: str) -> None:
    assert lower_is_better(metric) is False


@pytest.mark.parametrize("metric", ["score_length_spearman", "pairs", "margin_mean", "samples/tokens", "", "acuracy"])
def test_others_have_no_direction_and_are_refused_before_anything_is_loaded(metric: str) -> None:
    assert lower_is_better(metric) is None
    with pytest.raises(InputError, match=r"best_metric=.*; needed: a metric of evaluation.json .* or none"):
        check_best(TrainerConfig(best_metric=metric))


def test_early_stopping_needs_a_metric() -> None:
    check_best(TrainerConfig(early_stopping=2))
    check_best(TrainerConfig(best_metric=None))
    with pytest.raises(InputError, match="early_stopping=2 with best_metric=none; needed: a metric"):
        check_best(TrainerConfig(best_metric=None, early_stopping=2))


def test_a_metric_that_is_not_measured_is_refused_before_step_1_with_those_that_are(trainer_of) -> None:
    with pytest.raises(
        InputError, match=r"best_metric='top_2_acc', not measured; needed: one of nll, accuracy; or none"
    ):
        trainer_of("top_2_acc").measure(0, nll=0.7, accuracy=0.5, pairs=3)
    with pytest.raises(
        InputError, match=r"best_metric='auc', which is not defined here \(one class\); needed: one of nll"
    ):
        trainer_of("auc").measure(0, nll=0.7)


@pytest.mark.parametrize(
    ("metric", "kept", "update"), [("loss", [10, 20], 20), ("accuracy", [10, 30], 30)]
)  # fmt: skip
def test_each_better_evaluation_is_saved_at_once_and_the_last_beside_it(
    trainer_of, saved, metric, kept, update
) -> None:
    trainer = trainer_of(metric)
    trainer.measure(0, nll=0.1, accuracy=0.9)  # the model before training is never the best
    trainer.measure(10, nll=0.6, accuracy=0.6)
    trainer.measure(20, nll=0.5, accuracy=0.6)
    trainer.measure(30, nll=0.8, accuracy=0.7)
    trainer.measure(40, nll=0.5, accuracy=0.5)
    assert saved == [("model", step) for step in kept]
    assert f"the last, after update 40: {trainer.run.folder / 'last'}" in finish(trainer)
    assert saved[-1] == ("last", 40)
    found = evaluation(trainer)
    assert (found["update"], found["best_metric"]) == (update, "nll" if metric == "loss" else metric)
    assert found["metrics"] == ({"nll": 0.5, "accuracy": 0.6} if update == 20 else {"nll": 0.8, "accuracy": 0.7})
    assert found["last"] == {"update": 40, "metrics": {"nll": 0.5, "accuracy": 0.5}}
    assert (found["before"], found["undefined"]) == ({"nll": 0.7}, {"auc": "one class"})


def test_where_the_last_is_the_best_there_is_no_other(trainer_of, saved) -> None:
    trainer = trainer_of()
    for step, loss in ((10, 0.6), (20, 0.5)):
        trainer.measure(step, nll=loss)
    assert finish(trainer) == "after update 20, the best by nll (0.5), and the last"
    assert saved == [("model", 10), ("model", 20)]


@pytest.mark.parametrize("metric", [None, "accuracy"])
def test_without_a_metric_or_where_none_was_ever_defined_the_last_is_the_model(trainer_of, saved, metric) -> None:
    trainer = trainer_of(metric)
    for step, loss in ((10, 0.5), (20, 0.6)):
        trainer.measure(step, nll=loss)
    assert finish(trainer) == "after update 20, the last"
    assert saved == [("model", 20)]
    assert evaluation(trainer)["metrics"] == {"nll": 0.6}
    assert evaluation(trainer)["best_metric"] is None
    assert "the saved model is the last (--best_metric loss keeps the best)" in trainer.best.notes(trainer)[0]


def test_a_run_stops_after_so_many_evaluations_in_a_row_without_a_better_one(trainer_of) -> None:
    trainer, stops = trainer_of(patience=2), {}
    for step, loss in ((0, 0.7), (10, 0.6), (20, 0.6), (30, 0.5), (40, 0.5), (50, 0.55)):
        trainer.measure(step, nll=loss)
        stops[step] = trainer.control.should_training_stop
    assert [step for step, stop in stops.items() if stop] == [50]
    finish(trainer)
    assert json.loads((trainer.run.folder / "run.json").read_text())["stopped_early"] == 50
    assert trainer.status.line.total == 50
    said = trainer.best.notes(trainer)[0]
    assert said.startswith("stopped early after update 50 of 100: 2 evaluations in a row were not better by nll (0.5)")


def test_a_run_whose_last_evaluation_was_due_anyway_did_not_stop_early(trainer_of) -> None:
    trainer = trainer_of(patience=1)
    for step, loss in ((50, 0.6), (100, 0.7)):
        trainer.measure(step, nll=loss)
    finish(trainer)
    assert "stopped_early" not in json.loads((trainer.run.folder / "run.json").read_text())


def test_a_resumed_run_decides_as_the_uninterrupted_one(trainer_of, saved) -> None:
    whole, resumed = trainer_of(patience=2), trainer_of(patience=2)
    for step, loss in ((10, 0.5), (20, 0.6)):
        whole.measure(step, nll=loss)
    saved.clear()
    resumed.best.load(json.loads(json.dumps(whole.best.state())))
    resumed.losses |= whole.losses
    resumed.measure(30, nll=0.55)
    assert saved == [], "update 10 is still the best"
    assert resumed.best.has_stopped
    whole.measure(30, nll=0.55)
    assert finish(resumed).partition(";")[0] == finish(whole).partition(";")[0]
    assert evaluation(resumed) == evaluation(whole)


def test_a_run_with_nothing_left_to_do_leaves_the_best_as_it_is(trainer_of, saved) -> None:
    whole, resumed = trainer_of(), trainer_of()
    for step, loss in ((90, 0.5), (100, 0.6)):
        whole.measure(step, nll=loss)
    saved.clear()
    resumed.best.load(whole.best.state())
    resumed.state.global_step, resumed.figures, resumed.losses = 100, whole.figures, whole.losses
    finish(resumed)
    assert saved == [("last", 100)]
    assert evaluation(resumed)["update"] == 90


def test_a_saving_that_draws_random_numbers_changes_none_of_the_training(tmp_path: Path) -> None:
    drawn = []
    best = BestModel("loss", save=lambda trainer, name, which: drawn.append(torch.rand(3)))
    trainer = FakeTrainer(best, Run.start(tmp_path / "run", {}, 0, tracking="none"))
    before = torch.get_rng_state()
    trainer.measure(10, nll=0.5)
    assert len(drawn) == 1
    assert torch.equal(torch.get_rng_state(), before)
