"""The model of the best evaluation by a held-out metric, which is kept, and the end of a run that no longer improves.

The results of the best evaluation so far are written when it is measured, so that a run that fails or is killed leaves
them. Which one it is belongs to the checkpoints: a resumed run decides as the uninterrupted one.
"""

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, final

from lmgym.config import TrainerConfig
from lmgym.distributed.random_state import seeded
from lmgym.errors import InputError, shown
from lmgym.report.known_metrics import metric_of
from lmgym.statistics import ENDS
from lmgym.training.choice import Choice
from lmgym.training.probes import Report
from lmgym.training.reporting import overfitting, rising, show_notes

LOSS = "loss"  # the held-out loss, whatever its probe calls it

SavedModel = Literal["model", "last"]


class Evaluated(Protocol):
    """The part of an ObjectiveTrainer that the choice of a model reads and sets."""

    args: Any
    state: Any
    control: Any
    probes: Mapping[str, Any]
    run: Any
    supervisor: Any
    status: Any
    metrics: Any
    losses: dict[int, float]
    before: dict[str, float]

    @property
    def module(self) -> Any:
        """The model without wrappers."""

    def report(self) -> Report:
        """All probes' last figures by their full names."""


Save = Callable[[Any, SavedModel, str], None]
"""`save(trainer, name, which)` writes the present model; `which` says in a sentence which one it is. Collective"""


def lower_is_better(metric: str) -> bool | None:
    """The direction of a metric by its full name; None if it has none."""
    known = metric_of(f"eval/{metric}")
    return known.better == "lower" if known and known.better else None


def check_best(settings: TrainerConfig) -> None:
    """Raises InputError for a metric without a direction, and for early stopping without a metric."""
    metric = settings.best_metric
    if metric is None and settings.early_stopping:
        raise InputError(
            f"early_stopping={settings.early_stopping} with best_metric=none; needed: a metric that stops improving, "
            "such as --best_metric loss, or --early_stopping 0"
        )
    if metric is not None and lower_is_better(metric) is None:
        raise InputError(
            f"best_metric={shown(metric)}; needed: a metric of evaluation.json of which it is known whether lower or "
            "higher is better, such as loss, accuracy or SET/METRIC of another evaluation; or none, which keeps the "
            "last model"
        )


@final
class BestModel:
    """Keeps the model of the best evaluation after an update by `metric`; None keeps the last model alone.

    A run stops after `patience` evaluations in a row that are not better than the best; 0 never stops it. Where a
    report has the metric by prompt, the prompts of `choice` that choose decide.
    """

    def __init__(self, metric: str | None = None, patience: int = 0, save: Save | None = None) -> None:
        self.metric, self.patience = metric, patience
        self._save = save
        self.update = -1
        """number of updates of the saved model; -1: none is saved"""
        self.value = math.nan
        self.report = Report({}, {})
        """figures of the saved model by full name"""
        self.choice = Choice()
        self._misses = 0  # evaluations in a row since the best
        self._written = -1  # number of updates of the last model that this process wrote
        self._end: int | None = None  # the update after which the run stopped early

    @property
    def has_stopped(self) -> bool:
        """True if the run stops early, or has stopped early."""
        return 0 < self.patience <= self._misses

    def state(self) -> dict[str, Any]:
        """Content of a checkpoint."""
        figures = {"metrics": self.report.metrics, "undefined": self.report.undefined}
        counts = {"update": self.update, "value": self.value, "misses": self._misses}
        return {"best": {**counts, **figures, "choice": self.choice.state_dict()}}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continues from a checkpoint."""
        best = state["best"]
        self.update, self.value, self._misses = best["update"], best["value"], best["misses"]
        self.report = Report(best["metrics"], best["undefined"])
        self.choice.load_state_dict(best.get("choice", {}))

    def after_evaluation(self, trainer: Evaluated) -> None:
        """Saves the model if it is the best so far, and stops the run if it no longer improves. Collective.

        Raises InputError, at the evaluation before step 1, if the metric is not measured.
        """
        step, report = trainer.state.global_step, trainer.report()
        if self.metric is None:
            return
        name = self._name(trainer)
        value, reading = report.metrics.get(name), report.readings.get(name)
        if reading is not None:
            value = self.choice.add(step, reading)
        if step == 0:
            _refuse_unmeasured(self.metric, name, report)
            return
        if value is not None and self._improves(name, value):
            self._take(step, report, value)
            self._write(trainer, "model", self._praise(trainer))
        else:
            self._misses += 1
        self._write_evaluation(trainer)
        show_notes(rising(trainer.losses), trainer.run)
        if self.has_stopped:
            trainer.control.should_training_stop = True

    def finish(self, trainer: Evaluated) -> None:
        """Saves the last model, after the last evaluation: beside the best, or as the only one. Collective."""
        step, report = trainer.state.global_step, trainer.report()
        if self.has_stopped and step < trainer.state.max_steps:
            self._end = trainer.status.line.total = step
            trainer.run.update(stopped_early=step)
        if self.update < 0:
            self._take(step, report, math.nan)
            self._write(trainer, "model", "the last of the run")
        elif self.update == step and self._written != step:  # resumed after the last update
            self._write(trainer, "model", self._praise(trainer))
        elif self.update < step:
            best = f"the best by {self.described(trainer)}, after update {self.update:,}, is beside it"
            self._write(trainer, "last", f"the last of the run; {best}")
        self._write_evaluation(trainer)

    def notes(self, trainer: Evaluated) -> list[str]:
        """Lines for the end of a run: that it stopped early, and that it overfitted."""
        stopped = []
        if self._end is not None:
            stopped = [
                f"stopped early after update {self._end:,} of {trainer.state.max_steps:,}: {self.patience} evaluations "
                f"in a row were not better by {self.described(trainer)} than the one after update {self.update:,}"
            ]
        return [*stopped, *overfitting(trainer.losses, self._saved(trainer))]

    def closing(self, trainer: Evaluated) -> str:
        """The model that is saved, in words, for the line that names its folder."""
        last = trainer.state.global_step
        if math.isnan(self.value):
            return f"after update {last:,}, the last"
        best = f"after update {self.update:,}, the best by {self.described(trainer)}{self.choice.words(self.update)}"
        if self.update == last:
            return f"{best}, and the last"
        return f"{best}; the last, after update {last:,}: {trainer.run.folder / 'last'}"

    def described(self, trainer: Evaluated) -> str:
        """The metric as people read it: `nll`, the name of the held-out loss, and its best value."""
        return f"{self._name(trainer)} ({self.value:.4g})"

    def _name(self, trainer: Evaluated) -> str:
        held_out = trainer.probes.get("")
        return held_out.loss if self.metric == LOSS and held_out is not None else self.metric or ""

    def _improves(self, name: str, value: float) -> bool:
        return self.update < 0 or (value < self.value if lower_is_better(name) else value > self.value)

    def _take(self, step: int, report: Report, value: float) -> None:
        self.update, self.report, self.value, self._misses = step, report, value, 0

    def _saved(self, trainer: Evaluated) -> str:
        if math.isnan(self.value):
            return "the saved model is the last (--best_metric loss keeps the best)"
        return f"the saved model is the one after update {self.update:,}, the best by {self._name(trainer)}"

    def _praise(self, trainer: Evaluated) -> str:
        return f"the best evaluation by {self.described(trainer)}{self.choice.words(self.update)}"

    def _write(self, trainer: Evaluated, name: SavedModel, which: str) -> None:
        self._written = trainer.state.global_step
        if self._save is None:
            return
        trainer.status.doing("saving the model")
        supervisor = trainer.supervisor
        saving = supervisor.saving_results(trainer.module) if supervisor else contextlib.nullcontext()
        # merging adapters draws random numbers, on the main rank alone: training must not depend on it
        with trainer.metrics.pause(), saving, seeded(trainer.args.seed):
            self._save(trainer, name, f"Weights after update {trainer.state.global_step:,}: {which}.")

    def _write_evaluation(self, trainer: Evaluated) -> None:
        """Writes `evaluation.json`: figures of the saved model, of before step 1, and of the last evaluation.

        `undefined` has the metrics that are not defined, `left_out` what was left out of those that are.
        """
        metrics, reasons = self.report.metrics, self.report.undefined
        content = {
            "update": self.update,
            "best_metric": None if math.isnan(self.value) else self._name(trainer),
            "metrics": metrics,
            "before": trainer.before,
            "undefined": {name: why for name, why in reasons.items() if name not in metrics},
            "left_out": {name: why for name, why in reasons.items() if name in metrics},
            **({"choice": self.choice.record(self.update)} if self.update in self.choice.looks else {}),
            "last": {"update": trainer.state.global_step, "metrics": trainer.report().metrics},
        }
        trainer.run.write_json("evaluation.json", content)


def _refuse_unmeasured(given: str, name: str, report: Report) -> None:
    """Raises InputError if the evaluation has no metric of this full name."""
    if name in report.metrics:
        return
    why = f", which is not defined here ({report.undefined[name]})" if name in report.undefined else ", not measured"
    figures = [metric for metric in report.metrics if not metric.endswith(ENDS)]
    names = ", ".join(metric for metric in figures if lower_is_better(metric) is not None)
    raise InputError(f"best_metric={shown(given)}{why}; needed: one of {names}; or none, which keeps the last model")
