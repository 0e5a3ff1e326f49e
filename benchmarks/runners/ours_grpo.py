"""Our GRPO on rollouts of a file: the parts that ppo/train.py calls, from token ids and scores on."""

from interface import parse_paths  # isort: skip  (before torch)
from grpo_interface import Clock, GRPOSpec, Memory, Positions, Row, read_batches, read_spec, write_result  # isort: skip

from collections.abc import Sequence

import numpy as np
import torch
from ours_iteration import refuse_non_finite
from transformers.utils import logging

from lmgym.config import ModelConfig, OptimizerConfig, RunConfig
from lmgym.distributed.plain_engine import PlainEngine
from lmgym.environments.episodes import Episode, Step
from lmgym.generation.protocol import Completion
from lmgym.models.loading import load_tokenizer
from ppo.actor_critic import Reference
from ppo.config import MethodConfig, PPOConfig, RolloutConfig
from ppo.rollouts import Rollouts, gather
from ppo.setup import build, make_engine, make_estimator, make_experience, make_learner

CPU = torch.device("cpu")


def read_config(spec: GRPOSpec) -> PPOConfig:
    """The spec in our words."""
    return PPOConfig(
        name="benchmark",
        policy=ModelConfig(spec.model, precision=spec.precision),
        rollout=RolloutConfig(
            num_rollouts=spec.batch, num_generations=spec.num_generations, max_new_tokens=spec.max_new_tokens
        ),
        method=MethodConfig(
            method="grpo",
            ppo_epochs=spec.epochs,
            init_kl_coef=spec.kl_coef,
            loss_aggregation="token",
            cliprange=spec.clip,
        ),
        optimizer=OptimizerConfig(
            learning_rate=spec.learning_rate,
            global_batch=spec.batch,
            micro_batch=spec.micro_batch,
            max_grad_norm=spec.max_grad_norm,
            seed=spec.seed,
        ),
        run=RunConfig(tracking="none"),
    )


def make_rollouts(rows: Sequence[Row], config: PPOConfig) -> Rollouts:
    """The rows as episodes of one step. The sampler's log-probabilities are not known, and not needed."""
    episodes = []
    for number, row in enumerate(rows):
        reply = Completion("", "stop", tuple(row.reply_ids), (0.0,) * len(row.reply_ids))
        episodes.append(Episode(number, "policy", [Step(row.prompt_ids, "", reply, row.score)], True, False, None, {}))
    return gather(episodes, config.reward, groups=np.arange(len(rows)) // config.algorithm.num_generations)


def record(engine: PlainEngine, reference: Reference | None, clock: Clock, positions: Positions) -> None:
    """Phases and positions, by wrapping what is called; nothing that it computes is changed."""

    def counted(forward):
        def run(rows, targets, *args, **kwargs):
            if clock.iteration >= clock.spec.warmup_iterations:
                positions.add(len(rows.ids), len(rows.ids), len(targets))
            return forward(rows, targets, *args, **kwargs)

        return clock.timed(lambda: "forward" if torch.is_grad_enabled() else "old and reference", run)

    engine.module.forward = counted(engine.module.forward)
    if reference is not None:
        reference.logprobs = counted(reference.logprobs)
    engine.backward = clock.timed("backward", engine.backward)
    engine.step = clock.timed("optimizer", engine.step)
    engine.optimizer.register_step_post_hook(clock.count_update)


def main() -> None:
    paths = parse_paths()
    spec = read_spec(paths.spec)
    logging.disable_progress_bar()
    torch.manual_seed(spec.seed)
    clock, memory, positions = Clock(spec, paths.profile, paths.count), Memory(), Positions()
    config = read_config(spec)
    actor, reference = build(config, load_tokenizer(spec.model))
    if reference is not None and spec.precision == "bf16":
        reference.round(everything=False)
    memory.loaded([actor, *([reference.model] if reference is not None else [])])
    engine = make_engine(config, actor, None, spec.adam_epsilon)
    record(engine, reference, clock, positions)
    experience, estimate = make_experience(config, engine, reference, CPU), make_estimator(config)
    learner = make_learner(config, engine, lambda _: spec.learning_rate, CPU, refuse_non_finite)
    for iteration, rows in enumerate(read_batches(spec)):
        rollouts = make_rollouts(rows, config)
        experience.measure(rollouts)
        estimate(rollouts, spec.kl_coef)
        learned = learner.learn(rollouts, iteration, iteration * spec.epochs)
        clock.policy_losses += [[update["policy_loss"]] for update in learned.curve]
        clock.end_iteration()
    write_result(paths.result, "ours_grpo", spec, clock, memory, positions, ())


if __name__ == "__main__":
    main()
