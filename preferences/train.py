"""Preference training in numbered steps: from a config to a policy that prefers what people preferred."""

import time
from dataclasses import replace
from functools import partial

from lmgym.distributed.ranks import rank, stop_distributed
from lmgym.models.forward.policies import PolicyModel, load_policy
from lmgym.runs.run import Run
from lmgym.runs.supervisor import Supervisor
from lmgym.runs.tracking import adopt_original_token_names
from lmgym.training.reporting import show_notes
from lmgym.training.samples import KeepSamples, SampleProbe, sampling_of
from lmgym.training.setup import adapt, open_run, training_arguments, update_sampler
from preferences.check import PreferencePlan, check
from preferences.config import PreferenceConfig
from preferences.objectives import ReplyModel
from preferences.reference import batch_tokens, uses_adapter, with_reference
from preferences.report import save_results, show_results, show_rows


def train(config: PreferenceConfig) -> None:
    """Train a policy, evaluate it and save it. Raises InputError before training for what cannot work."""
    adopt_original_token_names()

    # 1. everything that can be refused or resolved before weights are loaded
    plan = check(config)
    config, data, tokenizer = plan.training.config, plan.training.data, plan.training.tokenizer
    plan.training.show()
    if config.run.dry_run:
        if rank() == 0:
            show_rows(list(data.train[:3]), plan.task, tokenizer)
        stop_distributed()
        return

    # 2. the folder, locked, and what a former launch of this command left in it
    launch = plan.training.deepspeed, plan.training.accumulation, data, plan.training.notes
    with open_run(config, *launch) as (run, supervisor, checkpoint):
        # 3. the reference's log-probabilities, before the policy is loaded
        data = with_reference(plan.training, run, supervisor)
        plan = replace(plan, training=replace(plan.training, data=data))

        # 4. the model, its trainer, and the run
        trainer = make_trainer(plan, run, supervisor)
        began = time.perf_counter()
        trainer.train_from(checkpoint)

        # 5. the last evaluation; the best model is saved by now, and the last one here
        trainer.finish()
        if run.is_main:
            show_results(config, data, trainer, time.perf_counter() - began, run.folder)
    stop_distributed()


def make_trainer(plan: PreferencePlan, run: Run, supervisor: Supervisor | None = None):
    """The policy in a trainer, with the evaluations during training."""
    # here, because the Trainer takes seconds to import, which a refused run should not
    from lmgym.training.best import BestModel
    from lmgym.training.trainer import ObjectiveTrainer

    config, tokenizer, data = plan.training.config, plan.training.tokenizer, plan.training.data
    settings, o = config.policy, config.optimizer
    sampler = update_sampler(plan.training)
    arguments = training_arguments(plan.training, sampler)  # before the model: ZeRO-3 shards at load
    loaded = load_policy(settings.model, tokenizer, settings.trust_remote_code, settings.bits)
    policy = PolicyModel(adapt(loaded, plan.training, run, supervisor), config.trainer.packed)
    notes = [policy.decoder.note] if policy.decoder.note else []
    model = ReplyModel(policy, tokenizer.eos_token_id, uses_adapter(config))
    objective = plan.task.objective(model)
    probes: dict = {"": plan.task.probe(data, model, batch_tokens(config))}
    callbacks = []
    if plan.prompts:
        sampling, source = sampling_of(config.samples, policy.causal.generation_config, o.seed)
        samples = probes["samples"] = SampleProbe(plan.prompts, policy, tokenizer, sampling, plan.scorers, source)
        notes.append(f"samples: {samples.settings}")
        callbacks.append(KeepSamples(samples, run))
    show_notes(notes, run)
    best = BestModel(
        config.trainer.best_metric, config.trainer.early_stopping, partial(save_results, config, tokenizer, run)
    )
    return ObjectiveTrainer(
        policy, arguments, data.train, objective, sampler, probes, run, callbacks, supervisor, best,
        objective.before_update,
    )  # fmt: skip
