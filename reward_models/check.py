"""Checks of a reward model's run before weights are loaded and a folder is opened; they result in its plan."""

from dataclasses import dataclass, replace

from lmgym.data.task_data import TaskData
from lmgym.errors import InputError
from lmgym.runs.paths import with_absolute_paths
from lmgym.training.plan import TrainingPlan, check_trainer_settings, make_plan
from lmgym.training.precision import with_native_precision
from reward_models.config import RewardModelConfig
from reward_models.metrics.evaluations import Evaluation, EvaluationSet, find_file, read_evaluation
from reward_models.pairwise import PairTask
from reward_models.tasks import Task

SET_ROWS = 2000
"""most rows of an evaluation set that are used"""


@dataclass(frozen=True)
class RewardModelPlan:
    """All that is resolved before weights are loaded."""

    training: TrainingPlan[RewardModelConfig]
    evaluations: list[EvaluationSet]
    """in addition to the held-out rows"""


def check(config: RewardModelConfig, task: Task) -> RewardModelPlan:
    """Start the ranks, read the data and resolve every setting. Raises InputError for what cannot work."""
    config = with_native_precision(with_absolute_paths(config))
    check_settings(config)
    _check_heads(config, task)
    evaluations: list[EvaluationSet] = []
    notes: list[str] = []

    def prepare(config: RewardModelConfig, tokenizer) -> TaskData:
        for evaluation in task.evaluations:  # first: they are small, and may be refused
            found, said = read_set(config, evaluation, tokenizer)
            evaluations.extend(found)
            notes.extend(said)
        return task.prepare(config, tokenizer)

    plan = make_plan(config, config.scorer, prepare)
    return RewardModelPlan(replace(plan, notes=[*plan.notes, *notes]), evaluations)


def check_settings(config: RewardModelConfig) -> None:
    """Raises InputError for settings out of their range, or that do not go together."""
    check_trainer_settings(config, config.scorer)


def _check_heads(config: RewardModelConfig, task: Task) -> None:
    """Raises InputError for several heads of what is not pairs, and for a decay that pulls them together."""
    if config.heads > 1 and (task.loss != PairTask.loss or task.outputs != config.heads):
        found = f"--heads {config.heads} with a task of {task.outputs} output(s), the {task.loss}"
        raise InputError(f"{found}; needed: pairs, as in hh_pairwise, or --heads 1")
    if config.heads > 1 and config.optimizer.weight_decay:
        raise InputError(
            f"--heads {config.heads} with --weight_decay {config.optimizer.weight_decay:g}, which pulls the heads' "
            "random priors to 0; needed: --weight_decay 0"
        )


def read_set(config: RewardModelConfig, evaluation: Evaluation, tokenizer) -> tuple[list[EvaluationSet], list[str]]:
    """(the set in `--probe_data`, if it is there; notes: that it is absent, or which rows are left out)."""
    if config.probe_data is None:
        return [], []
    path = find_file(config.probe_data, evaluation.file)
    if path is None:
        return [], [f"{config.probe_data} has no {evaluation.file}.parquet or .jsonl: not evaluated on it"]
    rows = read_evaluation(path, evaluation, SET_ROWS, tokenizer, config.data.max_length)
    notes = [f"{path.name}: {rows.left_out}", *filter(None, [rows.tally.warning])] if rows.left_out else []
    return [rows], notes
