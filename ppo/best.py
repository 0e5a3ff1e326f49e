"""The policy that is kept: the last or, by a monitor that is never optimised, that of the best evaluation.

The policy with the highest reward is the one that exploits it most (Gao et al. 2022): the reward never chooses.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from lmgym.errors import InputError, shown
from lmgym.runs.run import Run
from lmgym.runs.supervisor import Supervisor
from ppo.config import RewardConfig
from ppo.evaluation import monitor_key
from ppo.rewards import optimised
from ppo.state import LoopState, save_results
from ppo.task_setups import TaskSetup


class Trained(Protocol):
    """The parts of a run that a policy is saved from."""

    engine: Any
    tokenizer: Any
    setup: TaskSetup


def check_best_metric(settings: RewardConfig, monitors: Iterable[str]) -> None:
    """Raises InputError if `best_metric` is the reward, or no monitor."""
    given = settings.best_metric
    if given is None or best_key(settings, monitors):
        return
    is_reward = "reward" in given or given.rpartition("/")[2] in optimised(settings)
    why = (
        "the policy is optimised for it, and the one with most of it is the one that exploits it most"
        if is_reward
        else "no such monitor"
    )
    raise InputError(
        f"best_metric={shown(given)}: {why}; needed: a scorer that is never optimised, here "
        f"{', '.join(monitors) or 'none (--eval_scorer and --monitor_scorers name them)'}; or none, the last policy"
    )


def best_key(settings: RewardConfig, monitors: Iterable[str]) -> str:
    """The metric of the monitor that chooses; empty if there is none."""
    name = best_monitor(settings, monitors)
    return monitor_key(name) if name else ""


def best_monitor(settings: RewardConfig, monitors: Iterable[str]) -> str:
    """The monitor that `best_metric` names, itself or by its metric; empty if there is none."""
    return next((name for name in monitors if settings.best_metric in (name, monitor_key(name))), "")


def keep_best(
    settings: RewardConfig,
    c: Trained,
    state: LoopState,
    run: Run,
    supervisor: Supervisor,
    update: int,
    metrics: Mapping[str, float],
) -> None:
    """Save the policy if the evaluation after this update is the best so far by the chosen monitor. Collective."""
    if state.best.update == update:
        key = best_key(settings, c.setup.monitors)
        which = f"The policy after update {update:,}, the best by `{key}` {state.best.words}. The table is over all."
        with supervisor.saving_results(c.engine.module):
            save_results(c.engine, c.tokenizer, run, metrics, which)


def save_last(
    settings: RewardConfig,
    c: Trained,
    state: LoopState,
    run: Run,
    supervisor: Supervisor,
    update: int,
    metrics: Mapping[str, float],
) -> list[str]:
    """Save the last policy: beside the best, or as the only one. Returns a line on what is saved where. Collective."""
    best, folder = state.best, run.folder
    has_best = best.update >= 0
    by = f"after update {best.update:,}, the best by {settings.best_metric} {best.words}"
    with supervisor.saving_results(c.engine.module):
        if best.update != update:
            beside = f"; beside it is that {by}" if has_best else ""
            which = f"The policy after update {update:,}, the last{beside}."
            save_results(c.engine, c.tokenizer, run, metrics, which, last=has_best)
    if not has_best:
        return [f"the policy: {folder / 'model'}, after update {update:,}, the last"]
    run.update(best_update=best.update, best={"score": best.score, **best.choice.record(best.update)})
    last = "" if best.update == update else f", after update {update:,}: {folder / 'last'}"
    return [f"the policy: {folder / 'model'}, {by}; the last{last or ' too'}"]
