"""A reward model: from a config and a task to a scorer."""

from functools import partial

from lmgym.models.classifiers import is_decoder
from lmgym.models.forward.scoring_model import ScoringModel
from lmgym.models.loading import load_classifier
from lmgym.runs.conclusion import IS_POLICY
from lmgym.runs.run import Run
from lmgym.runs.supervisor import Supervisor
from lmgym.runs.tracking import adopt_original_token_names
from lmgym.training.reporting import show_notes
from lmgym.training.running import run_stage, show_figures
from lmgym.training.setup import adapt, round_frozen, training_arguments, update_sampler
from reward_models.check import RewardModelPlan, check
from reward_models.config import RewardModelConfig
from reward_models.pairwise import PairTask
from reward_models.report import save_results, show_rows
from reward_models.tasks import Task


def train_pairwise(config: RewardModelConfig) -> None:
    """`train` on pairs."""
    train(config, PairTask(outputs=config.heads))


def train(config: RewardModelConfig, task: Task) -> None:
    """Train a scorer, evaluate it and save it. Raises InputError before training for what cannot work."""
    adopt_original_token_names()
    plan = check(config, task)
    training = plan.training
    training.show()
    run_stage(
        training,
        partial(show_rows, task, training.tokenizer),
        partial(make_trainer, plan, task),
        partial(show_figures, training, "scorer", "model"),
    )


def make_trainer(plan: RewardModelPlan, task: Task, run: Run, supervisor: Supervisor | None = None):
    """The scorer in a trainer, with the evaluations during training."""
    # here, because the Trainer takes seconds to import, which a refused run should not
    from lmgym.training.best import BestModel
    from lmgym.training.trainer import ObjectiveTrainer
    from reward_models.callbacks import KeepSamples
    from reward_models.probes import Probe, TranscriptProbe

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
    run.update(new_head=new_head, **{IS_POLICY: new_head and is_decoder(classifier)})
    scoring = ScoringModel(
        adapt(classifier, plan.training, run, supervisor), config.trainer.packed, config.trainer.dropout
    )
    round_frozen(scoring.model, plan.training)
    if scoring.decoder is not None and scoring.decoder.note:
        show_notes([scoring.decoder.note], run)
    objective = task.objective(config, scoring, pad)
    batch_tokens = o.batch_tokens(data.replies * config.data.max_length)
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
