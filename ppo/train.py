"""PPO from a config and a task setup to a policy. `train` checks, sets up and saves; `_loop` is the algorithm.

Design decisions:
- Prompts, seeds of episodes and orders of minibatches are functions of (seed, iteration, number of the episode), never
  of the rank: the same episodes are played, and the same minibatches learned, however many ranks share them.
- Checkpoints are written between iterations, when the state is what ppo/state.py writes, and rollouts that were sampled
  ahead, which ppo/journal.py has.
"""

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from lmgym.console import CONSOLE
from lmgym.distributed.ranks import rank, stop_distributed, sum_over_ranks, world_size
from lmgym.environments.episodes import Episode
from lmgym.environments.groups import number_groups, reward_spread
from lmgym.environments.scorer_reward import RecordingScorer, ScorerReward, reference_moments, to_moments
from lmgym.errors import SERVER_FAILED, RunStopped
from lmgym.runs.conclusion import CHAT_SCORERS, conclude
from lmgym.runs.run import Run
from lmgym.runs.supervisor import Supervisor
from lmgym.runs.tracking import adopt_original_token_names
from lmgym.scoring.retries import RetryPolicy
from lmgym.training.capabilities import PROBE, figures_table, report_of
from lmgym.training.probes import full_name
from lmgym.training.reporting import TIME_UNKNOWN, show_notes, time_left
from lmgym.training.setup import EVALUATIONS, open_run
from ppo.best import best_monitor, keep_best, save_last
from ppo.check import Plan, check, is_due
from ppo.config import PPOConfig
from ppo.evaluation import REWARD, evaluate, gains, replies_to_show, show_replies, write_samples
from ppo.experience import LogprobMismatch
from ppo.learner import Learned
from ppo.monitoring.episode_files import replay_file, write_games, write_rollouts
from ppo.monitoring.metrics import (
    Clock,
    episode_sums,
    iteration_metrics,
    reduce_means,
    rollout_sums,
    show_line,
    status_figures,
)
from ppo.monitoring.safeguards import (
    FAILED,
    FirstForward,
    check_rollouts,
    collapse,
    critic_notes,
    failure_notes,
    reward_notes,
    stop_collapsed,
    stop_if_too_many_failed,
)
from ppo.opponents import claim_pool, set_opponent
from ppo.pending import PendingRollouts, recovering, sync
from ppo.rewards import (
    EVAL_SCORER,
    at_iteration,
    changing_weights,
    normalised_by_run,
    scorers_of_chats,
    weights_by_group,
)
from ppo.rollouts import Played, Rollouts, complete, gather, play_tasks, refuse_idle_agents, share_of_iteration
from ppo.setup import TrainingComponents, set_up
from ppo.state import LoopState, read_state, write_state
from ppo.sync_proof import SyncError
from ppo.task_setups import Prepare, share_starting_replies


def train(config: PPOConfig, prepare: Prepare) -> Path:
    """Optimise a policy, evaluate it and save it; returns the run's folder.

    Raises InputError before step 1 for what cannot work.
    """
    adopt_original_token_names()
    plan = check(config, prepare)
    folder = Path(plan.config.output)
    if not config.rollout.replay:
        plan.show()
    if config.run.dry_run:
        plan.show_tasks()
        show_notes([TIME_UNKNOWN] if rank() == 0 else [])
    elif config.rollout.replay:
        replay_file(plan.setup, config.rollout.replay)
    else:
        folder = _run(plan)
    stop_distributed()
    return folder


def _run(plan: Plan) -> Path:
    with open_run(plan.config, plan.deepspeed, 1, plan.setup, plan.notes) as (run, supervisor, checkpoint):
        claim_pool(plan.config.rollout.opponents, run, resumed=checkpoint is not None)
        components = set_up(plan, run, supervisor)
        run.update(**{CHAT_SCORERS: scorers_of_chats(plan.config.reward, components.setup.reward_function)})
        with closing(components.sampler):
            state = _start(plan, components, run, supervisor, checkpoint)
            try:
                metrics = _loop(plan, components, state, run, supervisor)
            except SyncError as error:
                raise _stop_unproved(error, plan, components, state, supervisor) from error
        last = plan.iterations * plan.updates_per_iteration
        notes = save_last(plan.config.reward, components, state, run, supervisor, last, metrics)
        failures = failure_notes(run.folder, plan.config.rollout.num_rollouts) if run.is_main else []
        show_notes([*failures, *notes], run)
    show_notes(conclude(run.folder) if run.is_main else [])
    return run.folder


def _start(plan: Plan, c: TrainingComponents, run: Run, supervisor: Supervisor, checkpoint: Path | None) -> LoopState:
    """The state of a checkpoint, or a new one with scorers' moments and an evaluation before step 1. Collective."""
    config, state = plan.config, LoopState.fresh(plan.config.algorithm.init_kl_coef, plan.config.method)
    if checkpoint:
        read_state(checkpoint, c.engine, state, config.optimizer.seed)
    _normalise(config, c, state, run, supervisor)
    if not state.before:
        supervisor.heartbeat("evaluating before step 1")
        c.status.update(doing="evaluating")
        state.before = _evaluate(config, c, state, run, supervisor, 0)
        run.log(0, state.before)
    state.starting_replies = share_starting_replies(c.setup, state.starting_replies)
    c.status.begin(state.iteration * plan.updates_per_iteration)
    return state


def _loop(plan: Plan, c: TrainingComponents, state: LoopState, run: Run, supervisor: Supervisor) -> dict[str, float]:
    """Run the remaining iterations; the metrics of the last one."""
    config, iterations, updates = plan.config, plan.iterations, plan.updates_per_iteration
    pending = PendingRollouts(plan, c, state, run, supervisor)
    metrics: dict[str, float] = {}
    while state.iteration < iterations:
        iteration, clock = state.iteration, Clock(supervisor, c.status)
        before, update = iteration * updates, (iteration + 1) * updates

        # 1. sync the sampling weights with the trained ones, and draw an opponent
        clock.phase("generate")
        pending.join(clock)
        sync(c, run, supervisor)
        opponent = set_opponent(config.rollout, config.optimizer.seed, c, run, supervisor, iteration)

        # 2. roll out: every rank plays its share of the episodes, with their rewards; one step ahead, the next one's
        played = _completed(config, c, pending.take(iteration, clock), run, iteration)
        pending.begin_next(iteration + 1, clock)
        episodes, groups = played.episodes, number_groups(played.episodes, played.share.groups)
        reward = at_iteration(c.setup.reward_function, iteration, iterations)
        more = weights_by_group(config.reward, reward), config.algorithm.overlong_penalty, config.rollout.max_new_tokens
        rollouts = gather(episodes, config.reward, before - played.updates, groups, *more)

        # 3. log-probabilities of policy and reference, values
        clock.phase("forward")
        evaluates = is_due(iteration + 1, config.run.eval_updates, updates, iterations)
        mismatch = c.experience.measure(rollouts, compares=iteration == 0, shows_kl=evaluates)
        notes = check_rollouts(c, state, episodes, rollouts, mismatch) + c.experience.cache_notes(rollouts)
        notes, spread = notes + pending.watch(mismatch, clock), _spread(config, played, groups)
        show_notes(notes + reward_notes(config.algorithm, state, episodes, spread), run)

        # 4. rewards with the KL penalty, advantages
        rewards = c.estimate_advantages(rollouts, state.kl.value)

        # 5. epochs of minibatches
        clock.phase("backward")
        first = FirstForward(c, state, rollouts, mismatch)
        learned = c.learner.learn(rollouts, iteration, before, first, iteration < config.critic.critic_warmup)

        # 6. metrics, the KL coefficient, the end of a collapsed run
        clock.phase("log")
        metrics = measure_iteration(config, state, episodes, rollouts, rewards, learned, first.mismatch)
        metrics |= spread | opponent | reduce_means(played.texts) | c.sampler.metrics | changing_weights(reward)
        collapsed = update_kl(config, state, metrics)
        state.iteration += 1
        write_rollouts(run, update, played, rollouts)

        # 7. evaluate
        if evaluates:
            pending.join(clock)
            clock.phase("evaluate")
            _evaluate_iteration(config, c, state, run, supervisor, update, metrics)
        metrics |= clock.seconds(metrics["rollout/trained_tokens"])
        _report(plan, c, state, run, metrics)
        if collapsed:
            raise stop_collapsed(collapsed, run, played.updates)

        # 8. save
        _save(plan, c, state, supervisor, pending, clock)
    return metrics


def _save(
    plan: Plan,
    c: TrainingComponents,
    state: LoopState,
    supervisor: Supervisor,
    pending: PendingRollouts,
    clock: Clock,
) -> None:
    """Save a checkpoint if one is due, or if the run was asked to stop, which it does then. Collective."""
    every, update = plan.config.run.save_updates, state.iteration * plan.updates_per_iteration
    leaving = sum_over_ranks(torch.tensor(float(supervisor.stop_requested))).item() > 0
    if leaving or (every >= 0 and is_due(state.iteration, every, plan.updates_per_iteration, plan.iterations)):
        pending.join(clock)  # they are in the journal then
        supervisor.save(update, lambda folder: write_state(folder, c.engine, state), c.engine.module)
    if leaving:
        supervisor.stop_interrupted(update)


def _stop_unproved(
    error: SyncError, plan: Plan, c: TrainingComponents, state: LoopState, supervisor: Supervisor
) -> Exception:
    """The end of a run whose server does not have the trainer's weights: with a checkpoint of these, once there is
    something to save. The state is that between two iterations. Collective.
    """
    if not state.iteration:
        return error
    update = state.iteration * plan.updates_per_iteration
    supervisor.save(update, lambda folder: write_state(folder, c.engine, state), c.engine.module)
    why = f"{error}; the trainer's weights are saved after update {update:,}: the same command goes on from there"
    return RunStopped(why, "server_failed", SERVER_FAILED)


def _report(plan: Plan, c: TrainingComponents, state: LoopState, run: Run, metrics: dict[str, float]) -> None:
    """Log the metrics of an iteration that has just ended, and show them on the main rank."""
    update = state.iteration * plan.updates_per_iteration
    run.log(update, metrics)
    if run.is_main:
        show_line(state.iteration, plan.iterations, metrics)
        show_notes(critic_notes(run.folder, state.iteration, plan.iterations), run)
        if update - plan.updates_per_iteration == c.status.first:
            show_notes(_time_left(plan, c, state, metrics))
    c.status.update(update, figures=status_figures(metrics, state.alarm.label(), update))
    if "eval/rollout/reply_tokens" in metrics:  # it was evaluated
        run.write_report()


def _time_left(plan: Plan, c: TrainingComponents, state: LoopState, metrics: dict[str, float]) -> list[str]:
    """A line on how long the rest of the run takes, from the first iteration of this process."""
    left, every = plan.iterations - state.iteration, plan.config.run.eval_updates
    evaluations = left * plan.updates_per_iteration // every + 1 if every else EVALUATIONS
    seconds = evaluations * c.evaluation_seconds
    ways = "a smaller --num_rollouts or --max_new_tokens, --num_layers_unfrozen or --lora_rank 16, more GPUs"
    return time_left(left, metrics["time/iteration"], "iterations", seconds, ways, plan.updates_per_iteration)


def _completed(config: PPOConfig, c: TrainingComponents, played: Played, run: Run, iteration: int) -> Played:
    """The played episodes, with episodes of absent agents. Stops all ranks if too many rewards failed. Collective."""
    played.episodes = complete(played.episodes, len(played.share.tasks), c.setup.trained_agents)
    asked = [episode for episode in played.episodes if not episode.is_absent]
    failed = [episode for episode in asked if episode.total_reward is None]
    error = next((error for episode in failed if (error := episode.failure)), "on another rank")
    counts = torch.tensor([float(len(failed)), float(len(asked))], dtype=torch.float64)
    lost, total = map(int, sum_over_ranks(counts))
    stop_if_too_many_failed(lost, total, config.reward.max_failed_rewards, error)
    absent = sum_over_ranks(torch.tensor(float(len(played.episodes) - len(asked)))).item()
    if not iteration:
        refuse_idle_agents(played.episodes, c.setup)
    if absent and not iteration:
        share = f"{absent:,.0f} of {total + absent:,.0f} episodes"
        show_notes([f"{share} are of agents that did not act in their game: masked (rollout/absent_agents)"], run)
    if lost:
        show_notes([f"{lost} of {total} rewards failed; {FAILED}{error}"], run)
    return played


def _spread(config: PPOConfig, played: Played, groups: np.ndarray) -> dict[str, float]:
    """Metrics of the groups [E], where prompts have several replies. Collective."""
    members = config.algorithm.num_generations
    if members == 1:
        return {}
    metrics = reward_spread(played.episodes, groups)
    if config.algorithm.max_refills:
        metrics["groups/refilled"] = played.refilled * members / config.rollout.num_rollouts
    return metrics


def _normalise(config: PPOConfig, c: TrainingComponents, state: LoopState, run: Run, supervisor: Supervisor) -> None:
    """Normalise scorers by their moments on replies of the policy before step 1, if asked for. Collective."""
    reward = c.setup.reward_function
    names = normalised_by_run(config.reward, reward)
    if not isinstance(reward, ScorerReward) or not names:
        return
    if state.scorer_moments is None:
        supervisor.heartbeat("reference replies, to normalise scorers")
        sync(c, run, supervisor)
        sizes = config.rollout.num_rollouts, config.algorithm.num_generations
        own, recorder = share_of_iteration(c.setup, *sizes, config.optimizer.seed, 0), RecordingScorer()
        seeds, how = [seed ^ 1 for seed in own.seeds], (c.tokenizer, c.sampling, config.rollout, recorder, own.members)
        recovering(c, run, supervisor, lambda: play_tasks(c.setup, own.tasks, seeds, c.sampler.generator, *how))
        sums = reference_moments(reward, recorder.samples, names)
        state.scorer_moments = to_moments({name: sum_over_ranks(of_rank) for name, of_rank in sums.items()})
    c.setup = replace(c.setup, reward_function=replace(reward, moments=state.scorer_moments))


def measure_iteration(
    config: PPOConfig,
    state: LoopState,
    episodes: Sequence[Episode],
    rollouts: Rollouts,
    rewards: torch.Tensor,
    learned: Learned,
    mismatch: LogprobMismatch | None,
) -> dict[str, float]:
    """The metrics of an iteration; updates the running moments and the first length. Collective."""
    assert mismatch is not None, "the first update's forward has shown it"
    sums = episode_sums(episodes) | rollout_sums(rollouts, rewards, state.kl.value, config.algorithm.has_critic)
    means = reduce_means(sums)
    totals = [x for episode in episodes if (x := episode.total_reward) is not None]
    squares = [sum(totals), sum(x * x for x in totals), float(len(totals))]
    state.moments.merge(sum_over_ranks(torch.tensor(squares, dtype=torch.float64)))
    state.first_length = state.first_length or means["rollout/reply_tokens"]
    means["rollout/trained_tokens"] *= world_size()  # a sum, not a mean
    return iteration_metrics(means, learned, mismatch, config.critic.vf_coef) | {
        "kl/coefficient": state.kl.value,
        "reward/running_mean": state.moments.mean,
        "reward/running_std": state.moments.std,
        **({"rollout/staleness": float(rollouts.staleness)} if config.engine.async_rollouts else {}),
    }


def update_kl(config: PPOConfig, state: LoopState, metrics: dict[str, float]) -> str:
    """Adapt the KL coefficient; the reason to stop a collapsed run, or an empty string."""
    if metrics["rollout/failed_rewards"] == 1:  # there is no mean reward
        return ""
    if "kl/reference" in metrics:
        state.kl.update(metrics["kl/reference"], config.rollout.num_rollouts)
    # the length of an action is the game's affair
    return collapse(metrics, config.limits, 0.0 if config.rollout.policy_over == "actions" else state.first_length)


def _evaluate_iteration(
    config: PPOConfig,
    c: TrainingComponents,
    state: LoopState,
    run: Run,
    supervisor: Supervisor,
    update: int,
    metrics: dict[str, float],
) -> None:
    """Add the evaluation to an iteration's metrics, and keep the policy if it is the best. Collective."""
    try:
        metrics |= _evaluate(config, c, state, run, supervisor, update)
    except SyncError:
        run.log(update, metrics)  # the checkpoint that is saved now has these updates
        raise
    keep_best(config.reward, c, state, run, supervisor, update, metrics)


def _evaluate(
    config: PPOConfig, c: TrainingComponents, state: LoopState, run: Run, supervisor: Supervisor, update: int
) -> dict[str, float]:
    """Evaluate, print and write samples, and raise the alarm. Collective."""
    began = time.perf_counter()
    sync(c, run, supervisor)
    setup, retries = c.setup.for_evaluation, RetryPolicy(config.reward.reward_timeout)
    how = setup, c.sampler.generator, c.tokenizer, c.sampling, config.rollout, retries
    found = recovering(c, run, supervisor, lambda: evaluate(*how))
    write_samples(run, "evaluation", update, found.rows)
    write_games(run, "evaluation", update, found.games)
    failed, total, error = found.failed_rewards
    if update == 0 and failed == total:  # a function that always fails need not fail for the rollouts too
        stop_if_too_many_failed(failed, total, config.reward.max_failed_rewards, error)
    metrics = found.metrics | gains(found.metrics, state.before, c.setup.monitors)
    show_notes(found.notes, run, update)
    if chooses := best_monitor(config.reward, c.setup.monitors):
        state.best.add(update, found.readings[chooses])
    if {"eval/eval_scorer", "eval/reward/mean"} <= metrics.keys():  # an evaluation may lack either
        raised_before = state.alarm.raised_at
        reward, score = found.readings[REWARD], found.readings[EVAL_SCORER]
        on = state.alarm.update(update, reward, score, metrics["eval/eval_scorer_std"])
        metrics["alarm/eval_scorer_falls"] = float(on)
        if on and raised_before < 0:
            show_notes([state.alarm.message()], run, update)
    metrics |= _test_capabilities(c, run, update)
    rows, settings = recovering(c, run, supervisor, lambda: replies_to_show(*how, found.rows))
    if run.is_main:
        show_replies(rows, update, settings)
    c.evaluation_seconds = time.perf_counter() - began
    return metrics


def _test_capabilities(c: TrainingComponents, run: Run, update: int) -> dict[str, float]:
    """Metrics of the tests by lm-eval, if there are any. Collective."""
    if c.capabilities is None:
        return {}
    c.status.update(doing="testing capabilities")
    generator = c.sampler.generator
    found = c.capabilities.measure(generator.model, c.tokenizer, generator.autocast).estimates
    if run.is_main:
        CONSOLE.print(figures_table(found, f"capabilities after {update:,} updates, by lm-eval"))
    return {f"eval/{full_name(PROBE, name)}": value for name, value in report_of(found).metrics.items()}
