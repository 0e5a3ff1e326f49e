"""Replies to held-out prompts at the same noise each time: their reward, the gym's own figures, the watched scorer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lmgym.engine import agreed, rank, share_objects, world_size
from lmgym.environments.protocol import Task
from lmgym.episodes import Episode, run_episodes
from lmgym.generation import Sampling
from lmgym.local_generation import LocalGenerator
from lmgym.text import Conversation, to_transcript
from ppo.config import PPOConfig
from ppo.figures import Sums, of_episodes, reduce_means, total_reward
from ppo.gyms import Gym

SHOWN = ("reward/mean", "rollout/reply_tokens", "rollout/turns", "rollout/unended")
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
    # what a rank without any tasks has no name for, all have to name
    own = of_episodes(episodes)
    own |= _of_metric(gym, episodes, tasks, tokenizer)
    golds = watched(gym, episodes, tasks)
    own["gold"] = (float(np.sum(golds)), len(golds))
    own["gold_squares"] = (float(np.sum(np.square(golds))), len(golds))
    names = sorted(set().union(*share_objects(set(own))))
    means = reduce_means({name: own.get(name, (0.0, 0.0)) for name in names})
    gold, squares = means.pop("gold"), means.pop("gold_squares")
    means.pop("reward/squares")
    metrics = {f"eval/{name}": value for name, value in means.items() if not math.isnan(value)}
    if not math.isnan(gold):
        error = math.sqrt(max(0.0, squares - gold * gold) / max(1, len(gym.eval_tasks)))
        metrics |= {"eval/gold": gold, "eval/gold_error": error}
    return Evaluated(metrics, table_rows(episodes, tasks, golds))


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


def watched(gym: Gym, episodes: Sequence[Episode], tasks: Sequence[Task]) -> list[float]:
    """What the gold scorer says of each episode of one reply to a conversation; empty without one."""
    if gym.gold is None or not episodes:
        return []
    prompts = [tasks[episode.index]["prompt"] for episode in episodes]
    replies = [" ".join(episode.steps[-1].completion.text.split()) for episode in episodes]
    return gym.gold.score(prompts, replies).tolist()


def table_rows(episodes: Sequence[Episode], tasks: Sequence[Task], golds: Sequence[float] = ()) -> list[dict[str, Any]]:
    """A row a reply, with what was earned and each scorer's opinion."""
    rows = []
    for number, episode in enumerate(episodes):
        prompt = tasks[episode.index].get("prompt", "")
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
                "earned": total_reward(episode),
                "scores": dict(step.scores),
            }
            if golds:
                row["gold"] = golds[number]
            if step.trouble:
                row["trouble"] = step.trouble
            rows.append(row)
    return rows
