"""Checks of a reward model's run before weights are loaded and a folder is opened; they result in its plan."""

from dataclasses import dataclass, replace

from lmgym.config import check_eval_size, check_shared_settings
from lmgym.data.batching import accumulation_steps
from lmgym.distributed.ranks import world_size
from lmgym.models.loading import load_tokenizer
from lmgym.runs.paths import with_absolute_paths
from lmgym.text import flat_template_note
from lmgym.training.best import check_best
from lmgym.training.plan import TrainingPlan, check_training_memory, fit_to_context, start_ranks
from reward_models.config import RewardModelConfig
from reward_models.metrics.evaluations import EvaluationSet, find_file, read_evaluation
from reward_models.tasks import Task


@dataclass(frozen=True)
class RewardModelPlan:
    """All that is resolved before weights are loaded."""

    training: TrainingPlan[RewardModelConfig]
    evaluations: list[EvaluationSet]
    """in addition to the held-out rows"""


def check(config: RewardModelConfig, task: Task) -> RewardModelPlan:
    """Start the ranks, read the data and resolve every setting. Raises InputError for what cannot work."""
    # 1. the settings alone
    config = with_absolute_paths(config)
    check_settings(config)
    o, scorer = config.optimizer, config.scorer
    accumulation = accumulation_steps(o.global_batch, o.micro_batch, world_size())
    deepspeed = start_ranks(config, scorer, accumulation)

    # 2. the model's config and tokenizer
    max_length, notes = fit_to_context(config.data.max_length, scorer)
    config = replace(config, data=replace(config.data, max_length=max_length))
    tokenizer = load_tokenizer(scorer.model, scorer.trust_remote_code)

    # 3. the data
    evaluations, evaluation_notes = read_evaluations(config, task, tokenizer)  # first: it is small, and may be refused
    data = task.prepare(config, tokenizer)
    check_training_memory(config, scorer, deepspeed, data.replies * max_length)
    notes = [*notes, *flat_template_note(tokenizer), *evaluation_notes]
    return RewardModelPlan(TrainingPlan(config, scorer, deepspeed, accumulation, tokenizer, data, notes), evaluations)


def check_settings(config: RewardModelConfig) -> None:
    """Raises InputError for settings out of their range, or that do not go together."""
    check_shared_settings(config, config.scorer)
    check_eval_size(config.data.eval_size, "rows")
    check_best(config.trainer)


def read_evaluations(config: RewardModelConfig, task: Task, tokenizer) -> tuple[list[EvaluationSet], list[str]]:
    """(the task's evaluation sets in `--probe_data`, notes on sets that are absent and on rows that are left out)."""
    settings = config.data
    if settings.probe_data is None:
        return [], []
    found, notes = [], []
    for evaluation in task.evaluations:
        path = find_file(settings.probe_data, evaluation.file)
        if path is None:
            notes.append(f"{settings.probe_data} has no {evaluation.file}.parquet or .jsonl: not evaluated on it")
            continue
        rows = read_evaluation(path, evaluation, settings.probe_rows, tokenizer, settings.max_length)
        found.append(rows)
        if rows.left_out:
            notes += [f"{path.name}: {rows.left_out}", *filter(None, [rows.tally.warning])]
    return found, notes
