"""Replies to held-out prompts at the same noise each time: their reward, the setup's own figures, the watched scorer.

What is only watched ends no run: it is asked again as a reward is (`attempts.py`), then left out, and a line says so.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lmgym.distributed.ranks import all_gather_objects, raise_on_all_ranks, rank, world_size
from lmgym.environments.function_reward import call_function
from lmgym.environments.protocol import Task
from lmgym.environments.rollout_engine import Episode, run_episodes
from lmgym.environments.scorer_reward import ask_scorer
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling, own_sampling
from lmgym.scoring.retries import RetryPolicy, RewardResult, ask
from lmgym.text import Conversation, reply_text, to_transcript
from ppo.config import PPOConfig
from ppo.metrics import Sums, of_episodes, reduce_means, total_reward
from ppo.task_setups import TaskSetup

EVALUATION_SEED = 7_654_321

Lost = dict[str, tuple[int, int, str]]
"""how many of so many could not be had, and the error with one of them"""
SHOWN = 4  # replies that people are shown at an evaluation


@dataclass(frozen=True)
class Evaluated:
    """Figures over all ranks, and rank 0's replies, a row each, for people to read."""

    metrics: dict[str, float]
    rows: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)
    """a line on each thing that could not be had, on any rank"""
    failed_rewards: tuple[int, int, str] = (0, 0, "")
    """how many of so many, and the error with one of them"""


def play(
    setup: TaskSetup, tasks: Sequence[Task], seeds: Sequence[int], generator: LocalGenerator, tokenizer,
    sampling: Sampling, config: PPOConfig, reward_function: Any = None,
) -> list[Episode]:  # fmt: skip
    """Episodes of these tasks. Collective: what a rank must refuse, all refuse."""
    environments, longest = [setup.environment() for _ in tasks], config.rollout.max_prompt or None
    return raise_on_all_ranks(
        lambda: run_episodes(
            environments, tasks, seeds, generator, tokenizer, sampling, reward_function or setup.reward_function,
            setup.others, longest, config.rollout.long_prompts,
        )
    )  # fmt: skip


def evaluate(
    config: PPOConfig, setup: TaskSetup, generator: LocalGenerator, tokenizer, sampling: Sampling
) -> Evaluated:
    """All evaluation tasks, shared among the ranks. Collective."""
    numbers = range(rank(), len(setup.eval_tasks), world_size())
    tasks = [setup.eval_tasks[i] for i in numbers]
    episodes = play(setup, tasks, [EVALUATION_SEED + i for i in numbers], generator, tokenizer, sampling, config)
    patience = RetryPolicy(config.reward.reward_timeout, config.reward.reward_retries)
    said, seen = raise_on_all_ranks(
        lambda: (
            _ask_metric(setup, episodes, tasks, tokenizer, patience),
            watch(setup, episodes, tasks, patience),
        )
    )
    lost = _add_lost(all_gather_objects(_lost(episodes, said, seen)))
    means = reduce_means(of_episodes(episodes) | _of_metric(said, len(episodes)) | _of_watched(seen))
    means.pop("reward/squares")
    squares = {name: means.pop(f"squares/{name}") for name in setup.watched}
    metrics = {_logged(name): value for name, value in means.items() if not math.isnan(value)}
    for name in setup.watched:
        failed, asked, _ = lost[_scores_of(name)]
        if failed < asked:
            mean = metrics.pop(f"eval/watched/{name}")
            std = math.sqrt(max(0.0, squares[name] - mean * mean))
            key = watched_key(name)
            metrics |= {key: mean, f"{key}_std": std, f"{key}_error": std / math.sqrt(asked - failed)}
    notes = [
        f"the evaluation goes without {failed} of {asked} {what}: {error}"
        for what, (failed, asked, error) in lost.items()
        if failed
    ]
    return Evaluated(metrics, table_rows(episodes, tasks, seen), notes, lost["rewards"])


def replies_to_show(
    config: PPOConfig,
    setup: TaskSetup,
    generator: LocalGenerator,
    tokenizer,
    sampling: Sampling,
    rows: list[dict[str, Any]],
) -> tuple[list[dict[str, Any]], str]:
    """Rows of replies for people, and how they were drawn. Collective.

    Where the model's generation config has settings, its users sample with these: SHOWN replies are drawn so. Else they
    are the evaluation's own `rows`.
    """
    own, source = own_sampling(generator.model.generation_config, sampling)
    if str(own) == str(sampling):
        return rows, f"{sampling}, as in rollouts"
    numbers = range(rank(), len(setup.eval_tasks), world_size())[:SHOWN]
    tasks = [setup.eval_tasks[i] for i in numbers]
    episodes = play(setup, tasks, [EVALUATION_SEED + i for i in numbers], generator, tokenizer, own, config)
    patience = RetryPolicy(config.reward.reward_timeout, config.reward.reward_retries)
    seen = raise_on_all_ranks(lambda: watch(setup, episodes, tasks, patience))
    return table_rows(episodes, tasks, seen), f"{own} ({source})"


def _logged(name: str) -> str:
    """trlx's name for the setup's own figures, which are only had in evaluations; the others are a rollout's too."""
    return name if name.startswith("metrics/") else f"eval/{name}"


def _scores_of(name: str) -> str:
    return f"scores of the watched {name}"


def _lost(
    episodes: Sequence[Episode],
    said: Sequence[RewardResult[dict[str, float]]],
    seen: Mapping[str, Sequence[RewardResult[float]]],
) -> Lost:
    """What this rank could not have."""
    failed = [episode for episode in episodes if total_reward(episode) is None]
    error = next((step.error for episode in failed for step in episode.steps if step.error), "")
    lost: Lost = {"rewards": (len(failed), len(episodes), error)}
    asked: dict[str, Sequence[RewardResult]] = {_scores_of(name): found for name, found in seen.items()}
    for what, found in {"answers of the metric": said, **asked}.items():
        errors = [one.error for one in found if one.value is None]
        lost[what] = len(errors), len(found), errors[0] if errors else ""
    return lost


def _add_lost(of_ranks: Sequence[Lost]) -> Lost:
    """Of all ranks, which have the same names."""
    found = {}
    for what in of_ranks[0]:
        failed, asked, errors = zip(*(own[what] for own in of_ranks), strict=True)
        found[what] = sum(failed), sum(asked), next(filter(None, errors), "")
    return found


def watched_key(name: str) -> str:
    """What the mean of a watched scorer is called in the log."""
    return "eval/gold" if name == "gold" else f"eval/watched/{name}"


def gains(metrics: Mapping[str, float], before: Mapping[str, float], names: Iterable[str]) -> dict[str, float]:
    """How far each watched score has risen since before step 1, in standard deviations over the replies then."""
    keys = [key for key in map(watched_key, names) if key in metrics]
    return {f"{k}_gain": (metrics[k] - before[k]) / before[f"{k}_std"] for k in keys if before.get(f"{k}_std", 0.0) > 0}


def _ask_metric(
    setup: TaskSetup, episodes: Sequence[Episode], tasks: Sequence[Task], tokenizer, patience: RetryPolicy
) -> list[RewardResult[dict[str, float]]]:
    """The setup's own figures of the last step of each episode, or why they could not be had; none without a metric."""
    metric = setup.metric
    if metric is None or not episodes:
        return []
    steps, played = [episode.steps[-1] for episode in episodes], [tasks[episode.index] for episode in episodes]
    names = {name for task in played for name in task if name != "prompt"}

    def call(places: Sequence[int]) -> Any:
        columns = {name: [task.get(name) for task in played] for name in names}
        answer = call_function(metric, steps, tokenizer, columns)
        return [{name: float(np.mean(value)) for name, value in answer.items()}]

    return ask(call, 1, lambda answer, _: answer, patience)


def _of_metric(said: Sequence[RewardResult[dict[str, float]]], episodes: int) -> Sums:
    found = [one.value for one in said if one.value is not None]
    return {f"metrics/{name}": (mean * episodes, episodes) for own in found for name, mean in own.items()}


def _of_watched(seen: Mapping[str, Sequence[RewardResult[float]]]) -> Sums:
    sums: Sums = {}
    for name, found in seen.items():
        scores = [one.value for one in found if one.value is not None]
        sums[f"watched/{name}"] = (float(np.sum(scores)), len(scores))
        sums[f"squares/{name}"] = (float(np.sum(np.square(scores))), len(scores))
    return sums


def watch(
    setup: TaskSetup, episodes: Sequence[Episode], tasks: Sequence[Task], patience: RetryPolicy
) -> dict[str, list[RewardResult[float]]]:
    """What each watched scorer says of each episode of one reply to a conversation."""
    if not setup.watched or not episodes:
        return {name: [] for name in setup.watched}
    prompts = [tasks[episode.index]["prompt"] for episode in episodes]
    replies = [reply_text(episode.steps[-1].completion.text) for episode in episodes]
    return {name: ask_scorer(scorer, prompts, replies, patience) for name, scorer in setup.watched.items()}


def table_rows(
    episodes: Sequence[Episode], tasks: Sequence[Task], seen: Mapping[str, Sequence[RewardResult[float]]] | None = None
) -> list[dict[str, Any]]:
    """A row a reply, with what was earned and each scorer's opinion."""
    rows = []
    for number, episode in enumerate(episodes):
        prompt, earned = tasks[episode.index].get("prompt", ""), total_reward(episode)
        for turn, step in enumerate(episode.steps):
            row = {
                "task": episode.index,
                "agent": episode.agent,
                "turn": turn,
                "prompt": to_transcript(prompt) if isinstance(prompt, Conversation) and not turn else step.prompt_text,
                "reply": step.completion.text,
                "tokens": len(step.completion.ids),
                "finish": step.completion.finish_reason,
                "reward": step.reward,
                "earned": earned,
                "scores": dict(step.scores),
            }
            if seen:
                row["watched"] = {n: own[number].value for n, own in seen.items() if own[number].value is not None}
            if step.error:
                row["error"] = step.error
            rows.append(row)
    return rows
