"""SFT: from a config and a task to a policy that can chat."""

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
from sft.check import SftPlan, check
from sft.config import SftConfig
from sft.probes import HeldOutProbe
from sft.report import show_rows
from sft.tasks import SftTask


def train(config: SftConfig, task: SftTask) -> Path:
    """Train a policy, evaluate it and save it; returns the run's folder.

    Raises InputError before training for what cannot work.
    """
    adopt_original_token_names()
    plan = check(config, task)
    training = plan.training
    training.show()
    return run_stage(
        training,
        partial(show_rows, training.tokenizer),
        partial(make_trainer, plan, task),
        partial(show_figures, training, "policy", saved_name(training.config)),
    )


def make_trainer(plan: SftPlan, task: SftTask, run: Run, supervisor: Supervisor | None = None):
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
    objective = task.objective(policy, training.tokenizer.pad_token_id)
    held_out = HeldOutProbe(data.evaluation, objective, config.optimizer.batch_tokens(config.data.max_length))
    samples = sample_probe(training, plan.prompts, plan.scorers, policy, run)
    tests = capability_probe(plan.capabilities, config.capabilities, policy, training.tokenizer, supervisor)
    save = partial(save_trained_policy, training, rows_trained_on(config, task.loss), "held_out.jsonl", run)
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
    )
