"""Evaluation: replies to held-out prompts, sampled with the same random numbers each time, and their scores.

A failed reward, metric or monitor does not end the run: it is retried (lmgym/scoring/retries.py), then left out, with a
note.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lmgym.aids import aid
from lmgym.distributed.ranks import all_gather_objects, raise_on_all_ranks, rank, world_size
from lmgym.environments.episodes import Episode
from lmgym.environments.function_reward import NO_REWARD, abstains, call_function
from lmgym.environments.protocol import Sample, ScoreRequest, Task
from lmgym.environments.recorded import record_games
from lmgym.environments.scorer_reward import scores_of
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling, sampling_from_config
from lmgym.runs.process_state import process_state_kept
from lmgym.runs.run import Run
from lmgym.scoring.agreement import pair_agreement
from lmgym.scoring.alarm import Reading
from lmgym.scoring.diversity import diversity
from lmgym.scoring.retries import RetryPolicy, Reward, RewardResult, call_with_retries
from lmgym.statistics import from_moments
from lmgym.text import Conversation, to_transcript
from lmgym.training.reporting import show_samples
from ppo.config import RolloutConfig
from ppo.monitoring.equal_length import shares_at_equal_length
from ppo.monitoring.metrics import Sums, episode_sums, reduce_means
from ppo.rewards import EVAL_SCORER
from ppo.rollouts import play_tasks
from ppo.task_setups import TaskSetup, judges_that_compare

EVALUATION_SEED = 7_654_321
SHOWN = 4  # replies that are printed at an evaluation

REWARD = "the reward"  # no monitor is called so: names have no blanks

Failures = dict[str, tuple[int, int, str]]
"""by name: how many failed, of how many, and one error"""


@dataclass(frozen=True)
class Evaluated:
    """Metrics over all ranks, and rank 0's replies, one row each."""

    metrics: dict[str, float]
    rows: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)
    """a line on everything that failed, on any rank"""
    failed_rewards: tuple[int, int, str] = (0, 0, "")
    """how many, of how many, and one error"""
    games: list[dict[str, Any]] = field(default_factory=list)
    """of all ranks, as they are recorded"""
    readings: dict[str, Reading] = field(default_factory=dict)
    """over all ranks and by prompt, of each monitor, and of the REWARD"""


def evaluate(
    setup: TaskSetup,
    generator: LocalGenerator,
    tokenizer,
    sampling: Sampling,
    settings: RolloutConfig,
    retries: RetryPolicy,
) -> Evaluated:
    """Metrics on all evaluation tasks, which ranks share. Collective."""
    numbers = range(rank(), len(setup.eval_tasks), world_size())
    tasks = [setup.eval_tasks[i] for i in numbers]
    seeds = [EVALUATION_SEED + i for i in numbers]
    episodes = play_tasks(setup, tasks, seeds, generator, tokenizer, sampling, settings)
    acted = [episode for episode in episodes if episode.steps]
    answers, scores = raise_on_all_ranks(
        lambda: (_call_metric(setup, acted, tasks, tokenizer, retries), monitor(setup, acted, tasks, retries))
    )
    failures = _add_failures(all_gather_objects(_failures(episodes, answers, scores)))
    texts = [step.completion.text for episode in episodes for step in episode.steps]
    varied = diversity([text for of_rank in all_gather_objects(texts) for text in of_rank])
    means = varied | reduce_means(episode_sums(episodes) | _metric_sums(answers, len(acted)) | _monitor_sums(scores))
    _add_reward_spread(means, failures["rewards"])
    squares = {name: means.pop(f"squares/{name}") for name in setup.monitors}
    ranks = all_gather_objects(_orders(acted, tasks, scores))
    agreed = agreements(ranks, setup.monitors)
    # trlx's name for custom metrics; the other names are those of rollouts too
    metrics = {
        name if name.startswith("metrics/") else f"eval/{name}": value
        for name, value in means.items()
        if not math.isnan(value)
    }
    metrics |= {f"eval/agreement/{name}": found for name, found in agreed.items()}
    for name in setup.monitors:
        failed, total, _ = failures[_scores_of(name)]
        if failed < total:
            key = monitor_key(name)
            mean = metrics.pop(f"eval/monitor/{name}")
            std = math.sqrt(max(0.0, squares[name] - mean * mean))
            metrics |= {key: mean, f"{key}_std": std, f"{key}_error": std / math.sqrt(total - failed)}
            metrics |= _interval(key, mean, std, total - failed)
    shares, why_none = shares_at_equal_length(judges_that_compare(setup), acted, tasks, scores)
    metrics |= shares
    notes = [
        f"the evaluation lacks {failed} of {total} {what}: {error}"
        for what, (failed, total, error) in failures.items()
        if failed
    ] + why_none
    own = [game | {"episode": numbers[game["episode"]]} for game in record_games(episodes, tasks)]
    games = [game for of_rank in all_gather_objects(own) for game in of_rank]
    readings = _readings(ranks, setup.monitors)
    return Evaluated(metrics, table_rows(acted, scores), notes, failures["rewards"], games, readings)


def _orders(
    episodes: Sequence[Episode], tasks: Sequence[Task], scores: Mapping[str, Sequence[RewardResult[float]]]
) -> list[tuple[str, float | None, dict[str, float | None]]]:
    """(prompt, reward, monitors' scores) of this rank's episodes."""
    prompts = [str(tasks[episode.index].get("prompt", "")) for episode in episodes]
    seen = [{name: found[i].value for name, found in scores.items()} for i in range(len(episodes))]
    return [(p, e.total_reward, s) for p, e, s in zip(prompts, episodes, seen, strict=True)]


def agreements(
    ranks: Sequence[Sequence[tuple[str, float | None, dict[str, float | None]]]], names: Iterable[str]
) -> dict[str, float]:
    """By monitor, the share of pairs of replies that it and the reward order alike, of replies to the same prompts.

    If each prompt has one reply, of all pairs of replies. A reply that either did not score is left out, and so is a
    monitor without a pair.
    """
    rows, found = [row for of_rank in ranks for row in of_rank], dict[str, float]()
    for name in names:
        known = [
            (prompt, reward, score)
            for prompt, reward, seen in rows
            if reward is not None and (score := seen.get(name)) is not None
        ]
        prompts, rewards, scores = zip(*known, strict=True) if known else ((), (), ())
        if (share := pair_agreement(rewards, scores, prompts)) is not None:
            found[name] = share
    return found


def _readings(
    ranks: Sequence[Sequence[tuple[str, float | None, dict[str, float | None]]]], names: Iterable[str]
) -> dict[str, Reading]:
    """By monitor, and of the reward, the means by prompt of `_orders`; games without prompts are a unit each."""
    rows = [row for of_rank in ranks for row in of_rank]
    names_of = (prompt or f"episode {i}" for i, (prompt, _, _) in enumerate(rows))
    prompts = [hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8).hexdigest() for name in names_of]

    def read(values: Iterable[float | None]) -> Reading:
        return Reading.of([math.nan if value is None else value for value in values], prompts)

    return {REWARD: read(reward for _, reward, _ in rows)} | {
        name: read(seen.get(name) for _, _, seen in rows) for name in names
    }


def _add_reward_spread(means: dict[str, float], failures: tuple[int, int, str]) -> None:
    """Replaces the mean square of the rewards by their standard deviation and the interval of their mean."""
    failed, total, _ = failures
    std = math.sqrt(max(0.0, means.pop("reward/squares") - means["reward/mean"] ** 2))
    if total - failed > 1:
        means |= {"reward/std": std, **_interval("reward/mean", means["reward/mean"], std, total - failed)}


def _interval(name: str, value: float, std: float, episodes: int) -> dict[str, float]:
    """A mean with the ends of its 95% interval, where there is one."""
    found = from_moments(value, std, episodes).named(name)
    return {key: number for key, number in found.items() if number is not None}


def replies_to_show(
    setup: TaskSetup,
    generator: LocalGenerator,
    tokenizer,
    sampling: Sampling,
    settings: RolloutConfig,
    retries: RetryPolicy,
    rows: list[dict[str, Any]],
) -> tuple[list[dict[str, Any]], str]:
    """Rows of replies to print, and the settings that they were sampled with. Collective.

    If the model's generation config has settings, its users sample with these: SHOWN replies are sampled so. Otherwise
    they are the evaluation's `rows`.
    """
    own, source = sampling_from_config(generator.generation_config, sampling)
    if str(own) == str(sampling):
        return rows, f"{sampling}, as in rollouts"
    numbers = range(rank(), len(setup.eval_tasks), world_size())[:SHOWN]
    tasks = [setup.eval_tasks[i] for i in numbers]
    played = play_tasks(setup, tasks, [EVALUATION_SEED + i for i in numbers], generator, tokenizer, own, settings)
    episodes = [episode for episode in played if episode.steps]
    scores = raise_on_all_ranks(lambda: monitor(setup, episodes, tasks, retries))
    return table_rows(episodes, scores), f"{own} ({source})"


def _scores_of(name: str) -> str:
    return f"scores of {name}"


def _failures(
    episodes: Sequence[Episode],
    answers: Sequence[RewardResult[dict[str, float]]],
    scores: Mapping[str, Sequence[RewardResult[float]]],
) -> Failures:
    """Failures on this rank."""
    failed = [episode for episode in episodes if episode.total_reward is None]
    error = next((error for episode in failed if (error := episode.failure)), "")
    failures: Failures = {"rewards": (len(failed), len(episodes), error)}
    results: dict[str, Sequence[RewardResult]] = {"answers of the metric": answers}
    for what, found in (results | {_scores_of(name): found for name, found in scores.items()}).items():
        errors = [one.error for one in found if one.value is None]
        failures[what] = len(errors), len(found), errors[0] if errors else ""
    return failures


def _add_failures(ranks: Sequence[Failures]) -> Failures:
    """Sums over ranks, which have the same names."""
    found = {}
    for what in ranks[0]:
        failed, total, errors = zip(*(of_rank[what] for of_rank in ranks), strict=True)
        found[what] = sum(failed), sum(total), next(filter(None, errors), "")
    return found


def monitor_key(name: str) -> str:
    """The metric name of a monitor's mean score."""
    return "eval/eval_scorer" if name == EVAL_SCORER else f"eval/monitor/{name}"


def gains(metrics: Mapping[str, float], before: Mapping[str, float], names: Iterable[str]) -> dict[str, float]:
    """The rise of each monitor's mean since before step 1, in standard deviations over the replies then."""
    keys = [key for key in map(monitor_key, names) if key in metrics]
    return {f"{k}_gain": (metrics[k] - before[k]) / before[f"{k}_std"] for k in keys if before.get(f"{k}_std", 0.0) > 0}


def _call_metric(
    setup: TaskSetup, episodes: Sequence[Episode], tasks: Sequence[Task], tokenizer, retries: RetryPolicy
) -> list[RewardResult[dict[str, float]]]:
    """The custom metrics of each episode's last step; empty without a metric function."""
    metric = setup.metric
    if metric is None or not episodes:
        return []
    steps, played = [episode.steps[-1] for episode in episodes], [tasks[episode.index] for episode in episodes]
    names = {name for task in played for name in task if name != "prompt"}

    def call(places: Sequence[int]) -> Any:
        columns = {name: [task.get(name) for task in played] for name in names}
        answer = call_function(metric, steps, tokenizer, columns)
        return [{name: float(np.mean(value)) for name, value in answer.items()}]

    with process_state_kept():
        return call_with_retries(call, 1, lambda answer, _: answer, retries)


def _metric_sums(answers: Sequence[RewardResult[dict[str, float]]], episodes: int) -> Sums:
    found = [one.value for one in answers if one.value is not None]
    return {f"metrics/{name}": (mean * episodes, episodes) for one in found for name, mean in one.items()}


def _monitor_sums(scores: Mapping[str, Sequence[RewardResult[float]]]) -> Sums:
    sums: Sums = {}
    for name, found in scores.items():
        values = [one.value for one in found if one.value is not None]
        sums[f"monitor/{name}"] = (float(np.sum(values)), len(values))
        sums[f"squares/{name}"] = (float(np.sum(np.square(values))), len(values))
    return sums


def monitor(
    setup: TaskSetup, episodes: Sequence[Episode], tasks: Sequence[Task], retries: RetryPolicy
) -> dict[str, list[RewardResult[float]]]:
    """Each monitor's score of each episode's last reply; prompts are conversations."""
    if not setup.monitors or not episodes:
        return {name: [] for name in setup.monitors}
    samples = []
    for episode in episodes:
        step, columns = episode.steps[-1], dict(tasks[episode.index])
        request = ScoreRequest(episode.agent, columns.pop("prompt"), step.completion.text, columns)
        samples.append(Sample(request, step.prompt_text, step.completion))
    return {
        name: [_as_number(result) for result in scores_of(source, samples, retries)]
        for name, source in setup.monitors.items()
    }


def _as_number(result: RewardResult[Reward]) -> RewardResult[float]:
    """A monitor's score of a reply: the sum of those of its tokens; a function that abstains gives none."""
    if abstains(result):
        return RewardResult(None, NO_REWARD)
    return RewardResult(sum(result.value) if isinstance(result.value, tuple) else result.value, result.error)


def table_rows(
    episodes: Sequence[Episode], scores: Mapping[str, Sequence[RewardResult[float]]] | None = None
) -> list[dict[str, Any]]:
    """One row per reply, with its reward and each scorer's score."""
    rows = []
    for number, episode in enumerate(episodes):
        total = episode.total_reward
        for turn, step in enumerate(episode.steps):
            seen = step.observed
            row = {
                "task": episode.index,
                "agent": episode.agent,
                "turn": turn,
                "prompt": to_transcript(seen) if isinstance(seen, Conversation) else step.prompt_text,
                "reply": step.completion.text,
                "tokens": len(step.completion.ids),
                "finish": step.completion.finish_reason,
                "reward": step.reward,
                "episode_reward": total,
                "scores": dict(step.scores),
            }
            if scores:
                row["monitors"] = {n: s[number].value for n, s in scores.items() if s[number].value is not None}
            if step.error:
                row["error"] = step.error
            rows.append(row)
    return rows


def rollout_rows(episodes: Sequence[Episode], advantages: Sequence[float]) -> list[dict[str, Any]]:
    """Rows of the rollouts' first episodes, with each reply's advantage."""
    rows = table_rows(episodes)
    return [row | {"advantage": mean} for row, mean in zip(rows, advantages, strict=False)]


@aid("the file of replies")
def write_samples(run: Run, name: str, update: int, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write replies, one row each, to a file under samples/."""
    if rows:
        run.write_lines(f"samples/{name}-{update:06d}.jsonl", [{"update": update, **row} for row in rows])


@aid("the table of replies")
def show_replies(rows: Sequence[Mapping[str, Any]], update: int, settings: str) -> None:
    """Print some replies after so many updates, with their scores and how they were sampled."""
    cells = []
    for row in rows[:SHOWN]:
        reward = sum(row["reward"]) if isinstance(row["reward"], tuple) else row["reward"]
        monitors = {f"{n}, monitor" if n in row["scores"] else n: s for n, s in row.get("monitors", {}).items()}
        cells.append(
            {"tokens": str(row["tokens"]), "reward": "failed" if reward is None else f"{reward:.2f}"}
            | {name: f"{score:.2f}" for name, score in (row["scores"] | monitors).items()}
        )
    if cells:
        show_samples(f"replies to held-out prompts after {update:,} updates: {settings}", rows[:SHOWN], cells)
