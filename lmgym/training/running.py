"""The course of a stage that runs Hugging Face's Trainer, in numbered steps, and its closing lines."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lmgym.aids import aid
from lmgym.console import say
from lmgym.distributed.ranks import rank, stop_distributed
from lmgym.runs.conclusion import conclude
from lmgym.runs.run import Run
from lmgym.runs.supervisor import Supervisor
from lmgym.training.plan import TrainingPlan
from lmgym.training.reporting import TIME_UNKNOWN, show_notes, show_table
from lmgym.training.samples import show_answers
from lmgym.training.setup import open_run


def run_stage(
    plan: TrainingPlan[Any],
    show_rows: Callable[[Sequence[Any]], None],
    make_trainer: Callable[[Run, Supervisor], Any],
    show_results: Callable[[Any, float], None],
) -> Path:
    """Train, evaluate and save what a plan says; returns the run's folder. A dry run shows three rows instead.

    `make_trainer` loads the model; `show_results` takes the trainer and its seconds.
    """
    # 1. all that can be refused was: a dry run ends here
    if plan.config.run.dry_run:
        if rank() == 0:
            _preview(plan, show_rows)
            say(TIME_UNKNOWN)
        stop_distributed()
        return Path(plan.config.output)

    # 2. the folder, locked, and what a former launch of this command left in it
    opened = open_run(plan.config, plan.deepspeed, plan.accumulation, plan.data, plan.notes)
    with opened as (run, supervisor, checkpoint):
        folder = run.folder
        # 3. the model, its trainer, and the updates
        trainer = make_trainer(run, supervisor)
        began = time.perf_counter()
        trainer.train_from(checkpoint)

        # 4. the last evaluation; the best model is saved by now, and the last one here
        trainer.finish()
        if run.is_main:
            show_results(trainer, time.perf_counter() - began)
    if run.is_main:
        show_notes(conclude(folder))
    stop_distributed()
    return folder


@aid("the preview of rows")
def _preview(plan: TrainingPlan[Any], show_rows: Callable[[Sequence[Any]], None]) -> None:
    show_rows(list(plan.data.train[:3]))


def show_figures(plan: TrainingPlan[Any], what: str, name: str, trainer: Any, seconds: float) -> None:
    """Prints the table of figures at a run's end, answers to fixed prompts, and the folder `name` of the model."""
    update, folder = trainer.best.update, trainer.run.folder
    title = f"{plan.config.name}, after update {update:,}: {len(plan.data.evaluation):,} held-out {plan.data.noun}"
    show_table(title, trainer.probes, trainer.best.report, trainer.before)
    show_notes(trainer.best.notes(trainer), trainer.run)
    show_answers(trainer.probes.get("samples"), folder, update)
    say(f"{seconds:.0f} s of training and evaluation; the {what}: {folder / name}, {trainer.best.closing(trainer)}")
