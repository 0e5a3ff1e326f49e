"""Output of a run in rounds: the plan, the table of rounds, the policy's folder."""

import json
from pathlib import Path
from typing import Any

from rich.table import Table

from lmgym.console import CONSOLE, say
from lmgym.distributed.ranks import rank
from lmgym.training.policies import saved_name
from lmgym.training.reporting import show_notes
from preferences.iterative.check import IterativePlan
from preferences.iterative.config import IterativeConfig
from preferences.tasks import LOSSES


def show_plan(plan: IterativePlan) -> None:
    """Prints the data and what a round is, on rank 0."""
    plan.training.show()
    if rank() != 0:
        return
    config, r = plan.training.config, plan.training.config.rounds
    by = ", ".join(f"{plan.weights.get(name, 1.0):g} {name}" for name in plan.scorers)
    reference = "the policy at the beginning of each round" if r.renew_reference else "the model it starts from"
    say(
        f"{plan.updates / config.updates_per_round:.3g} round(s) of {r.num_generations} replies to "
        f"{r.prompts_per_round:,} prompts, scored by {by}, and {config.updates_per_round} update(s) on the best and "
        f"the worst{f'; the reference is {reference}' if config.loss.has_reference else ''}"
    )


def show_rounds(plan: IterativePlan, trainer: Any, seconds: float) -> None:
    """Prints the table of rounds at a run's end; those before a resume are read from metrics.jsonl."""
    config, scorers, folder = plan.training.config, [*plan.scorers, *plan.monitor], trainer.run.folder
    judge = next(iter(plan.monitor), "the scorers")
    title = f"{config.name}: replies to {len(plan.prompts.evaluation):,} held-out prompts; wins by {judge}"
    table = Table(title=title, title_justify="left")
    table.add_column("round")
    for name in ("win rate", *scorers, "KL", "tokens", "ended"):
        table.add_column(name, justify="right", no_wrap=True)
    for line in evaluations(folder):
        value = {key.removeprefix("eval/"): number for key, number in line.items()}
        low, high = value.get("win_rate_low"), value.get("win_rate_high")
        interval = " (–)" if low is None else f" ({low:.2f} to {high:.2f})"
        table.add_row(
            f"{line['step'] / config.updates_per_round:g}",
            f"{value['win_rate']:.3f}{interval}",
            *(f"{value[f'score/{name}']:.3f}" for name in scorers),
            f"{value['kl']:.2f}",
            f"{value['tokens']:.1f}",
            f"{value['ended']:.3f}",
        )
    CONSOLE.print(table)
    saved = folder / saved_name(config)
    took = f"{seconds:.0f} s of training and evaluation"
    show_notes([f"{took}; the policy: {saved}, {trainer.best.closing(trainer)}"], trainer.run)


def evaluations(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl that are evaluations, one for each update."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [*{line["step"]: line for line in lines if "eval/win_rate" in line}.values()]


def card_text(config: IterativeConfig) -> str:
    """The policy's training in words, for its card."""
    r = config.rounds
    return f"""lmgym on its own replies to `{config.data.prompts}`: the best and the worst of {r.num_generations} as
pairs, with the {LOSSES[config.loss.loss]}, in rounds of {r.prompts_per_round:,} prompts, at learning rate
{config.optimizer.learning_rate:g}."""
