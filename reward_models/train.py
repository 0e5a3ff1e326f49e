"""A reward model in numbered steps: from a config and a task to a scorer."""

import time
from functools import partial

from lmgym.distributed.ranks import rank, stop_distributed
from lmgym.models.forward.scoring_model import ScoringModel
from lmgym.models.loading import load_classifier
from lmgym.runs.run import Run
from lmgym.runs.supervisor import Supervisor
from lmgym.runs.tracking import adopt_original_token_names
from lmgym.training.reporting import show_notes
from lmgym.training.setup import adapt, open_run, training_arguments, update_sampler
from reward_models.check import RewardModelPlan, check
from reward_models.config import RewardModelConfig
from reward_models.pairwise import PairTask
from reward_models.report import save_results, show_results, show_rows
from reward_models.tasks import Task


def train_pairwise(config: RewardModelConfig) -> None:
    """`train` on pairs."""
    train(config, PairTask())


def train(config: RewardModelConfig, task: Task) -> None:
    """Train a scorer, evaluate it and save it. Raises InputError before training for what cannot work."""
    adopt_original_token_names()

    # 1. everything that can be refused or resolved before weights are loaded
    plan = check(config, task)
    config, data, tokenizer = plan.training.config, plan.training.data, plan.training.tokenizer
    plan.training.show()
    if config.run.dry_run:
        if rank() == 0:
            show_rows(data.train[:3], task, tokenizer)
        stop_distributed()
        return

    # 2. the folder, locked, and what a former launch of this command left in it
    launch = plan.training.deepspeed, plan.training.accumulation, data, plan.training.notes
    with open_run(config, *launch) as (run, supervisor, checkpoint):
        # 3. the model, its trainer, and the run
        trainer = make_trainer(plan, task, run, supervisor)
        began = time.perf_counter()
        trainer.train_from(checkpoint)

        # 4. the last evaluation; the best model is saved by now, and the last one here
        trainer.finish()
        if run.is_main:
            show_results(config, data, trainer, time.perf_counter() - began, run.folder)
    stop_distributed()


def make_trainer(plan: RewardModelPlan, task: Task, run: Run, supervisor: Supervisor | None = None):
    """The scorer in a trainer, with the evaluations during training."""
    # here, because the Trainer takes seconds to import, which a refused run should not
    from lmgym.training.best import BestModel
    from lmgym.training.trainer import ObjectiveTrainer
    from reward_models.probes import Probe, TranscriptProbe
    from reward_models.samples import KeepSamples

    config, tokenizer, data = plan.training.config, plan.training.tokenizer, plan.training.data
    settings, o, pad = config.scorer, config.optimizer, tokenizer.pad_token_id
    sampler = update_sampler(plan.training)
    arguments = training_arguments(plan.training, sampler)  # before the model: ZeRO-3 shards at load
    classifier, new_head = load_classifier(
        settings.model,
        tokenizer,
        num_labels=task.outputs,
        seed=o.seed,
        trust_remote_code=settings.trust_remote_code,
        bits=settings.bits,
    )
    run.update(new_head=new_head)
    scoring = ScoringModel(adapt(classifier, plan.training, run, supervisor), config.trainer.packed)
    if scoring.decoder is not None and scoring.decoder.note:
        show_notes([scoring.decoder.note], run)
    objective = task.objective(config, scoring, pad)
    batch_tokens = data.replies * o.micro_batch * config.data.max_length
    task_probe = task.probe(data, scoring, pad, batch_tokens)
    probes: dict[str, Probe] = {"": task_probe}
    for rows in plan.evaluations:
        probes[rows.evaluation.name] = TranscriptProbe(rows, scoring, pad, batch_tokens, task.reduce)
    best = BestModel(
        config.trainer.best_metric, config.trainer.early_stopping, partial(save_results, config, task, tokenizer, run)
    )
    callbacks = [KeepSamples(data.evaluation, task, task_probe, tokenizer, run)]
    return ObjectiveTrainer(
        scoring, arguments, data.train, objective, sampler, probes, run, callbacks, supervisor, best
    )
