"""PPO in one straight line: from a config and a setup to a policy that earns more. The loop is `train`, step by step.

Design decisions:
- Prompts, seeds of episodes and orders of minibatches are functions of (seed, iteration, number of the episode), never
  of the rank: the same episodes are played, and the same minibatches learned, however many ranks share them.
- Between iterations there is nothing under way but what ppo/state.py writes: checkpoints are made there.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from lmgym.distributed.deepspeed_config import read_config
from lmgym.distributed.ranks import (
    all_gather_objects,
    raise_on_all_ranks,
    rank,
    start_distributed,
    stop_distributed,
    sum_over_ranks,
    world_size,
)
from lmgym.environments.protocol import Sample, SampleReward, Task
from lmgym.environments.rollout_engine import Episode
from lmgym.environments.scorer_reward import ScorerReward, reference_moments, text_counts, to_moments
from lmgym.errors import InputError
from lmgym.models.loading import load_tokenizer
from lmgym.models.quantized import refuse_unfit_quantization
from lmgym.random_state import seed_all
from lmgym.runs.run import Run
from lmgym.runs.supervisor import Supervisor
from lmgym.runs.tracking import adopt_original_token_names
from lmgym.text import flat_template_note
from lmgym.training.reporting import show_notes
from lmgym.training.setup import EVALUATIONS, kept_run
from ppo.algorithms.advantages import masked_sums
from ppo.bounds import refuse_impossible
from ppo.config import PPOConfig
from ppo.evaluation import evaluate, gains, play, replies_to_show, table_rows
from ppo.experience import LogprobMismatch, reward_and_advance
from ppo.learner import Learned
from ppo.memory import check_run_memory
from ppo.metrics import Clock, TimedReward, finished, of_episodes, of_rollouts, of_texts, reduce_means, total_reward
from ppo.preflight import (
    biases,
    check_policy,
    check_prompts,
    check_rollouts,
    idle_policy,
    most_of_a_prompt,
    ratio_check,
)
from ppo.report import save_results, show_line, show_plan, show_samples, show_tasks, write_samples
from ppo.rollouts import Rollouts, gather, tasks_of_iteration
from ppo.setup import TrainingComponents, count_iterations, set_up
from ppo.state import LoopState, read_state, write_state
from ppo.stopping import collapse, stop_collapsed, stop_if_too_many_failed
from ppo.task_setups import Prepare, TaskSetup, check_unused_settings

SAMPLES = 8  # of an iteration that are kept to read


def train(config: PPOConfig, prepare: Prepare) -> None:
    """Optimise a policy, evaluate it and save it. Raises InputError before step 1 for what cannot work."""
    adopt_original_token_names()
    refuse_impossible(config, world_size())
    deepspeed = read_config(config.run.deepspeed) if config.run.deepspeed else None
    refuse_unfit_quantization(config.policy, deepspeed)
    start_distributed(use_deepspeed=deepspeed is not None)
    tokenizer = load_tokenizer(config.policy.model, config.policy.trust_remote_code)
    context = check_policy(config, tokenizer)
    seed_all(config.optimizer.seed, rank())  # for rewards and environments that draw random numbers
    setup = prepare(config, tokenizer)
    check_unused_settings(config.reward, setup)
    tasks = [*setup.tasks, *setup.eval_tasks]
    cuts = raise_on_all_ranks(lambda: check_prompts(config, tokenizer, context, tasks) if rank() == 0 else [])
    check_run_memory(config, deepspeed, tokenizer, tasks)
    iterations = count_iterations(config, setup)
    if rank() == 0:
        show_plan(config, setup, deepspeed, iterations)
        show_notes([*flat_template_note(tokenizer), *biases(config), *idle_policy(config, iterations), *cuts])
    if config.run.dry_run:
        if rank() == 0:
            show_tasks(setup, tokenizer, most_of_a_prompt(config, context))
        stop_distributed()
        return
    with kept_run(config, deepspeed, 1, setup) as (run, supervisor, checkpoint):
        parts = set_up(config, setup, deepspeed, tokenizer, run, supervisor, iterations)
        state = LoopState.fresh(config.method)
        if checkpoint:
            read_state(checkpoint, parts.engine, state, config.optimizer.seed)
        _begin(config, parts, state, run, supervisor)
        metrics = _loop(config, parts, state, run, supervisor, iterations)
        with supervisor.saving_results(parts.engine.module):
            folder = save_results(config, parts.engine, tokenizer, run, metrics)
        if run.is_main:
            show_notes([f"the policy: {folder}"])
    stop_distributed()


def _loop(
    config: PPOConfig, p: TrainingComponents, state: LoopState, run: Run, supervisor: Supervisor, iterations: int
) -> dict[str, float]:
    """All iterations that are left; the figures of the last one."""
    metrics: dict[str, float] = {}
    while state.iteration < iterations:
        iteration, clock = state.iteration, Clock(supervisor)
        sampled_after, update = iteration * p.updates, (iteration + 1) * p.updates

        # 1. the weights that sample are those that were trained
        clock.phase("rollout_generate")
        p.sampler.sync(p.engine.version)

        # 2. roll out: every rank plays its share of the iteration's episodes; rewards come with them
        tasks, seeds = _share(config, p.setup, iteration)
        shown = text_counts(p.setup.reward_function)
        episodes = _roll_out(config, p, tasks, seeds, clock, run)
        paid = config.reward
        rollouts = gather(episodes, paid.missing_eos_penalty, paid.cliprange_reward, paid.scale)

        # 3. log-probabilities of policy and reference, values
        clock.phase("forward")
        gap = p.experience.measure(rollouts)
        notes = check_rollouts(config, p, state, episodes, rollouts, gap) + p.experience.why_no_cache(rollouts)
        show_notes(notes if run.is_main else [])

        # 4. KL reward and advantages
        rewards = reward_and_advance(rollouts, config, state.kl.value)

        # 5. epochs of minibatches
        clock.phase("backward")
        learned = p.learner.learn(rollouts, iteration, sampled_after, ratio_check(config, p, state, rollouts))

        # 6. figures, and what follows from them: the KL coefficient, a collapse
        clock.phase("log")
        metrics = figures(config, state, episodes, rollouts, rewards, learned, gap)
        metrics |= reduce_means(of_texts(shown, text_counts(p.setup.reward_function)))
        why = _judge(config, state, metrics)
        state.iteration += 1
        write_samples(run, "rollouts", update, table_rows(episodes[:SAMPLES], tasks))

        # 7. evaluate
        if _due(state.iteration, config.run.eval_updates, p.updates, iterations):
            clock.phase("evaluate")
            metrics |= _evaluated(config, p, state, run, update)
        metrics |= clock.seconds(metrics["rollout/trained_tokens"])
        run.log(update, metrics)
        show_line(run, iteration, iterations, metrics)
        if why:
            raise stop_collapsed(why, run, sampled_after)

        # 8. save
        leaving = sum_over_ranks(torch.tensor(float(supervisor.asked_to_leave))).item() > 0
        if leaving or _saves(config, state.iteration, p.updates, iterations):
            supervisor.save(update, lambda folder: write_state(folder, p.engine, state), p.engine.module)
        if leaving:
            supervisor.leave(update)
    return metrics


def _judge(config: PPOConfig, state: LoopState, metrics: dict[str, float]) -> str:
    """Moves the KL coefficient; why the run should stop now, or nothing."""
    if metrics["rollout/failed_rewards"] == 1:  # a mean of nothing judges nobody
        return ""
    state.kl.update(metrics["policy/kl"], config.rollout.num_rollouts)
    return collapse(metrics, config.method, state.first_length)


def _share(config: PPOConfig, setup: TaskSetup, iteration: int) -> tuple[list[Any], list[int]]:
    """This rank's tasks of an iteration, with the seed of each episode."""
    number, seed = config.rollout.num_rollouts, config.optimizer.seed
    chosen = tasks_of_iteration(setup.tasks, number, iteration, seed)
    seeds = np.random.default_rng([seed, iteration]).integers(2**62, size=number)
    own = slice(rank(), None, world_size())
    return [setup.tasks[i] for i in chosen[own]], seeds[own].tolist()


def _roll_out(
    config: PPOConfig, p: TrainingComponents, tasks: Sequence[Task], seeds: Sequence[int], clock: Clock, run: Run
) -> list[Episode]:
    """This rank's episodes, rewarded. Collective: ends all ranks where too few of one have rewards."""
    setup = replace(p.setup, reward_function=TimedReward(p.setup.reward_function, clock))
    episodes = play(setup, tasks, seeds, p.sampler.generator, p.tokenizer, p.sampling, config)
    refuse_uneven(config, len(episodes), setup.trained_agents)
    _stop_where_rewards_fail(config, episodes, run)
    return episodes


def _begin(config: PPOConfig, p: TrainingComponents, state: LoopState, run: Run, supervisor: Supervisor) -> None:
    """What every figure is measured from: the scorers' moments, and an evaluation before step 1. Collective."""
    _normalise(config, p, state, supervisor)
    if not state.before:
        supervisor.heartbeat("evaluating before step 1")
        state.before = _evaluated(config, p, state, run, 0)
        run.log(0, state.before)


def _normalise(config: PPOConfig, p: TrainingComponents, state: LoopState, supervisor: Supervisor) -> None:
    """Gives scorers mean 0 and std 1 on replies of the policy before step 1, where that is asked for. Collective."""
    reward_function = p.setup.reward_function
    if not isinstance(reward_function, ScorerReward) or not config.reward.normalize:
        return
    if state.scorer_moments is None:
        supervisor.heartbeat("reference replies, to normalise scorers")
        p.sampler.sync(p.engine.version)
        tasks, seeds = _share(config, p.setup, 0)
        heard = RecordingScorer()
        play(
            p.setup,
            tasks,
            [seed ^ 1 for seed in seeds],
            p.sampler.generator,
            p.tokenizer,
            p.sampling,
            config,
            heard,
        )
        sums = reference_moments(reward_function, heard.samples)
        state.scorer_moments = to_moments({name: sum_over_ranks(own) for name, own in sums.items()})
    p.setup = replace(p.setup, reward_function=replace(reward_function, moments=state.scorer_moments))


class RecordingScorer:
    """A judge that only listens."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def rewards(self, samples: Sequence[Sample]) -> list[SampleReward]:
        """Keeps them."""
        self.samples += samples
        return [SampleReward(0.0) for _ in samples]


def refuse_uneven(config: PPOConfig, episodes: int, trained_agents: int) -> None:
    """Raises InputError, on all ranks, where minibatches would not be those that were counted on, the same for all."""
    each, played = all_gather_objects(episodes), config.rollout.num_rollouts
    if len(set(each)) > 1 or sum(each) != played * trained_agents:
        raise InputError(
            f"an iteration gave {', '.join(map(str, each))} episodes on its ranks, where {played} games were played; "
            f"needed: one episode per trained agent and game, trained_agents={trained_agents}: each agent must act in "
            f"every game; set TaskSetup(trained_agents={max(1, round(sum(each) / played))})"
        )


def _stop_where_rewards_fail(config: PPOConfig, episodes: Sequence[Episode], run: Run) -> None:
    """Raises RunStopped, on all ranks, where more rewards failed than allowed; else tells of those that did."""
    failed = [e for e in episodes if total_reward(e) is None]
    error = next((step.error for e in failed for step in e.steps if step.error), "on another rank")
    counts = sum_over_ranks(torch.tensor([float(len(failed)), float(len(episodes))], dtype=torch.float64))
    lost, asked = map(int, counts)
    stop_if_too_many_failed(lost, asked, config.reward.max_failed_rewards, error)
    if lost and run.is_main:
        show_notes([f"{lost} of {asked} rewards could not be had, and count nothing: {error}"])


def figures(
    config: PPOConfig, state: LoopState, episodes: Sequence[Episode], rollouts: Rollouts, rewards: torch.Tensor,
    learned: Learned, gap: LogprobMismatch,
) -> dict[str, float]:  # fmt: skip
    """The line of an iteration; what a run goes on with (running moments, the first length) is noted. Collective."""
    means = reduce_means(of_episodes(episodes) | of_rollouts(rollouts, rewards, state.kl.value))
    earned = torch.tensor([x for e in episodes if (x := total_reward(e)) is not None], dtype=torch.float64)
    state.moments.merge(sum_over_ranks(masked_sums(earned, torch.ones_like(earned, dtype=torch.bool))))
    state.first_length = state.first_length or means["rollout/reply_tokens"]
    means["rollout/trained_tokens"] *= world_size()  # a sum, not a mean
    metrics = finished(means, learned, gap, (state.moments.mean, state.moments.std), config.method.vf_coef)
    return metrics | {"policy/kl_coef": state.kl.value, "policy/learning_rate": learned.rate}


def _saves(config: PPOConfig, iteration: int, each: int, iterations: int) -> bool:
    updates = config.run.save_updates
    return updates >= 0 and _due(iteration, updates, each, iterations)


def _due(iteration: int, updates: int, each: int, iterations: int) -> bool:
    """Whether something that happens every so many updates (0: five times in a run) happens after this iteration of
    `each` updates.
    """
    every = max(1, round(updates / each) if updates > 0 else -(-iterations // EVALUATIONS))
    return iteration % every == 0 or iteration == iterations


def _evaluated(config: PPOConfig, p: TrainingComponents, state: LoopState, run: Run, update: int) -> dict[str, float]:
    p.sampler.sync(p.engine.version)
    found = evaluate(config, p.setup, p.sampler.generator, p.tokenizer, p.sampling)
    write_samples(run, "evaluation", update, found.rows)
    failed, asked, error = found.failed_rewards
    if update == 0 and failed == asked:  # a function that always fails, or stalls, is not asked all of it again
        stop_if_too_many_failed(failed, asked, config.reward.max_failed_rewards, error)
    metrics = found.metrics | gains(found.metrics, state.before, p.setup.watched)
    show_notes(found.notes if run.is_main else [])
    if {"eval/gold", "eval/reward/mean"} <= metrics.keys():  # an evaluation may go without
        before = state.alarm.raised_at
        reward, gold, deviation = (metrics[f"eval/{name}"] for name in ("reward/mean", "gold", "gold_error"))
        on = state.alarm.hear(update, reward, gold, deviation)
        metrics["alarm/gold_falls"] = float(on)
        if on and before < 0 and run.is_main:
            show_notes([state.alarm.words(update, reward, gold)])
    shown, drawn = replies_to_show(config, p.setup, p.sampler.generator, p.tokenizer, p.sampling, found.rows)
    if run.is_main:
        show_samples(shown, update, drawn)
    return metrics
