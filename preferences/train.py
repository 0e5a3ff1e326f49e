"""Preference training: from a config to a policy that prefers what people preferred."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from lmgym.runs.run import Run
from lmgym.runs.supervisor import Supervisor
from lmgym.runs.tracking import adopt_original_token_names
from lmgym.training.capabilities import capability_probe
from lmgym.training.policies import load_trained_policy, rows_trained_on, save_trained_policy, saved_name
from lmgym.training.running import run_stage, show_figures
from lmgym.training.samples import sample_probe
from lmgym.training.setup import training_arguments, update_sampler
from lmgym.turn_ends import turn_ends
from preferences.check import PreferencePlan, check
from preferences.config import PreferenceConfig
from preferences.objectives import ReplyModel
from preferences.reference import batch_tokens, uses_adapter, with_reference
from preferences.report import show_rows
from preferences.tasks import LOSSES


def train(config: PreferenceConfig) -> Path:
    """Train a policy, evaluate it and save it; returns the run's folder.

    Raises InputError before training for what cannot work.
    """
    adopt_original_token_names()
    plan = check(config)
    training = plan.training
    training.show()

    def make(run: Run, supervisor: Supervisor):
        data = with_reference(training, run, supervisor)  # before the policy is loaded
        return make_trainer(replace(plan, training=replace(training, data=data)), run, supervisor)

    show = partial(show_figures, training, "policy", saved_name(training.config))
    return run_stage(training, partial(show_rows, plan.task, training.tokenizer), make, show)


def make_trainer(plan: PreferencePlan, run: Run, supervisor: Supervisor | None = None):
    """The policy in a trainer, with the evaluations during training."""
    # here, because the Trainer takes seconds to import, which a refused run should not
    from lmgym.training.best import BestModel
    from lmgym.training.callbacks import KeepSamples
    from lmgym.training.trainer import ObjectiveTrainer

    training = plan.training
    config, data = training.config, training.data
    sampler = update_sampler(training)
    arguments = training_arguments(training, sampler)  # before the model: ZeRO-3 shards at load
    policy = load_trained_policy(training, run, supervisor)
    model = ReplyModel(policy, turn_ends(training.tokenizer).ids[0], uses_adapter(config))
    objective = plan.task.objective(model)
    held_out = plan.task.probe(data, model, batch_tokens(config))
    samples = sample_probe(training, plan.prompts, plan.scorers, policy, run)
    tests = capability_probe(plan.capabilities, config.capabilities, policy, training.tokenizer, supervisor)
    beta = "" if config.loss.loss == "orpo" else f" at beta {config.loss.strength:g}"
    how = rows_trained_on(config, f"{LOSSES[config.loss.loss]}{beta}")
    save = partial(save_trained_policy, training, how, "scores.jsonl", run)
    best = BestModel(config.trainer.best_metric, config.trainer.early_stopping, save)
    return ObjectiveTrainer(
        policy,
        arguments,
        data.train,
        objective,
        sampler,
        {"": held_out, **samples, **tests},
        run,
        [KeepSamples(probe, run) for probe in samples.values()],
        supervisor,
        best,
        objective.before_update,
    )
