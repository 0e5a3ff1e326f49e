"""Replies to held-out prompts at the same noise each time: their reward, the gym's own figures, the watched scorer."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lmgym.engine import agreed, rank, world_size
from lmgym.environments.app import one_line
from lmgym.environments.protocol import Task
from lmgym.episodes import Episode, run_episodes
from lmgym.generation import Sampling
from lmgym.local_generation import LocalGenerator
from lmgym.text import Conversation, to_transcript
from ppo.config import PPOConfig
from ppo.figures import Sums, of_episodes, reduce_means, total_reward
from ppo.gyms import Gym

EVALUATION_SEED = 7_654_321


@dataclass(frozen=True)
class Evaluated:
    """Figures over all ranks, and rank 0's replies, a row each, for people to read."""

    metrics: dict[str, float]
    rows: list[dict[str, Any]]


def play(
    gym: Gym, tasks: Sequence[Task], seeds: Sequence[int], generator: LocalGenerator, tokenizer, sampling: Sampling,
    config: PPOConfig, judge: Any = None,
) -> list[Episode]:  # fmt: skip
    """Episodes of these tasks. Collective: what a rank must refuse, all refuse."""
    environments, longest = [gym.environment() for _ in tasks], config.rollout.max_prompt or None
    return agreed(
        lambda: run_episodes(
            environments, tasks, seeds, generator, tokenizer, sampling, judge or gym.judge, gym.others, longest,
            config.rollout.long_prompts,
        )
    )  # fmt: skip


def evaluate(config: PPOConfig, gym: Gym, generator: LocalGenerator, tokenizer, sampling: Sampling) -> Evaluated:
    """All evaluation tasks, shared among the ranks. Collective."""
    numbers = range(rank(), len(gym.eval_tasks), world_size())
    tasks = [gym.eval_tasks[i] for i in numbers]
    episodes = play(gym, tasks, [EVALUATION_SEED + i for i in numbers], generator, tokenizer, sampling, config)
    own = of_episodes(episodes)
    own |= _of_metric(gym, episodes, tasks, tokenizer)
    seen = watch(gym, episodes, tasks)
    for name, scores in seen.items():
        own[f"watched/{name}"] = (float(np.sum(scores)), len(scores))
        own[f"squares/{name}"] = (float(np.sum(np.square(scores))), len(scores))
    means = reduce_means(own)
    means.pop("reward/squares")
    squares = {name: means.pop(f"squares/{name}") for name in gym.watched}
    metrics = {f"eval/{name}": value for name, value in means.items() if not math.isnan(value)}
    for name in gym.watched if gym.eval_tasks else ():
        mean = metrics.pop(f"eval/watched/{name}")
        std = math.sqrt(max(0.0, squares[name] - mean * mean))
        key = watched_key(name)
        metrics |= {key: mean, f"{key}_std": std, f"{key}_error": std / math.sqrt(len(gym.eval_tasks))}
    return Evaluated(metrics, table_rows(episodes, tasks, seen))


def watched_key(name: str) -> str:
    """What the mean of a watched scorer is called in the log."""
    return "eval/gold" if name == "gold" else f"eval/watched/{name}"


def gains(metrics: Mapping[str, float], before: Mapping[str, float], names: Iterable[str]) -> dict[str, float]:
    """How far each watched score has risen since before step 1, in standard deviations over the replies then."""
    keys = [watched_key(name) for name in names]
    return {f"{k}_gain": (metrics[k] - before[k]) / before[f"{k}_std"] for k in keys if before.get(f"{k}_std", 0.0) > 0}


def _of_metric(gym: Gym, episodes: Sequence[Episode], tasks: Sequence[Task], tokenizer) -> Sums:
    """The gym's own figures of the last step of each episode."""
    if gym.metric is None or not episodes:
        return {}
    steps, played = [episode.steps[-1] for episode in episodes], [tasks[episode.index] for episode in episodes]
    names = {name for task in played for name in task if name != "prompt"}
    said = gym.metric(
        samples=[step.prompt_text + step.completion.text for step in steps],
        prompts=[step.prompt_text for step in steps],
        outputs=[step.completion.text for step in steps],
        tokenizer=tokenizer,
        **{name: [task.get(name) for task in played] for name in names},
    )
    return {f"metrics/{name}": (float(np.mean(value)) * len(steps), len(steps)) for name, value in said.items()}


def watch(gym: Gym, episodes: Sequence[Episode], tasks: Sequence[Task]) -> dict[str, list[float]]:
    """What each watched scorer says of each episode of one reply to a conversation."""
    if not gym.watched or not episodes:
        return {name: [] for name in gym.watched}
    prompts = [tasks[episode.index]["prompt"] for episode in episodes]
    replies = [one_line(episode.steps[-1].completion.text) for episode in episodes]
    return {name: scorer.score(prompts, replies).tolist() for name, scorer in gym.watched.items()}


def table_rows(
    episodes: Sequence[Episode], tasks: Sequence[Task], seen: Mapping[str, Sequence[float]] | None = None
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
                row["watched"] = {name: scores[number] for name, scores in seen.items()}
            if step.trouble:
                row["trouble"] = step.trouble
            rows.append(row)
    return rows
