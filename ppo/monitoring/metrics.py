"""Metrics of an iteration, over all ranks. docs/ppo.md maps the names to those of trlx."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from lmgym.aids import aid
from lmgym.console import say
from lmgym.distributed.ranks import all_gather_objects, sum_over_ranks
from lmgym.environments.episodes import Episode
from lmgym.environments.protocol import RewardFunction, Sample, SampleReward
from lmgym.report.known_metrics import short_name
from lmgym.report.status_line import StatusLine, status_figure
from lmgym.runs.supervisor import Supervisor
from lmgym.scoring.scorers import TextCounts
from ppo.experience import LogprobMismatch
from ppo.learner import Learned
from ppo.rollouts import Rollouts

Sums = dict[str, tuple[float, float]]
"""a sum and the count that it is divided by"""
IF_ANY = ("rollout/absent_agents", "rollout/failed_episodes", "sampler/masked_replies")
"""metrics that are left out while there are none"""
ROUNDING = 1e-12  # of a sum beside that of its terms' absolute values
LINE = (
    "reward/mean",
    "eval/reward/mean",
    "eval/eval_scorer",
    "eval/eval_scorer_gain",
    "kl/reference",
    "rollout/reply_tokens",
    "policy/clip_fraction",
    "values/explained_variance",
    "rollout/tokens_per_second",
)
"""metrics of the line that is printed after an iteration"""

PHASES = {
    "generate": "generating",
    "score": "scoring",
    "forward": "log-probabilities",
    "backward": "learning",
    "log": "logging",
    "evaluate": "evaluating",
}
"""phases of an iteration, as the status line has them"""


def reduce_means(sums: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """The mean of each over all ranks; NaN if the count is 0 everywhere. Collective.

    A rank may lack names that others have, as one without episodes does. Of IF_ANY only those above 0 are kept.
    """
    names = sorted(set().union(*all_gather_objects(set(sums))))
    pairs = [sums.get(name, (0.0, 0.0)) for name in names]
    flat = sum_over_ranks(torch.tensor(pairs, dtype=torch.float64)).tolist()
    kept = {n: found for n, found in zip(names, flat, strict=True) if found[0] or n not in IF_ANY}
    return {name: total / count if count else math.nan for name, (total, count) in kept.items()}


def episode_sums(episodes: Sequence[Episode]) -> Sums:
    """Rewards, lengths and finish reasons; shares of absent agents and of games that failed."""
    games = {episode.index: bool(episode.error) for episode in episodes if not episode.is_absent}
    absent, agents = sum(episode.is_absent for episode in episodes), len(episodes)
    episodes = [episode for episode in episodes if not episode.is_absent]
    rewards = [reward for episode in episodes if (reward := episode.total_reward) is not None]
    steps = [step for episode in episodes for step in episode.steps]
    sums: Sums = {
        "reward/mean": _pair(rewards),
        "reward/squares": _pair([x * x for x in rewards]),
        "rollout/reply_tokens": _pair([len(step.completion.ids) for step in steps]),
        "rollout/turns": (len(steps), sum(bool(episode.steps) for episode in episodes)),
        "rollout/truncated_fraction": _pair([step.completion.finish_reason == "length" for step in steps]),
        "rollout/cut_prompts": _pair([step.dropped_turns > 0 or step.shortened > 0 for step in steps]),
        "rollout/shortened_prompts": _pair([step.shortened > 0 for step in steps]),
        "rollout/failed_rewards": (len(episodes) - len(rewards), len(episodes)),
        "rollout/truncated_episodes": _pair([episode.truncated for episode in episodes]),
    }
    sums["rollout/absent_agents"] = (absent, agents)
    sums["rollout/failed_episodes"] = (sum(games.values()), len(games))
    if later := len(steps) - sum(bool(episode.steps) for episode in episodes):
        sums["rollout/appended_prompts"] = (sum(step.appended for step in steps), later)
    names = sorted({name for step in steps for name in step.scores})
    sums |= {f"scores/{n}": _pair([s.scores[n] for s in steps if n in s.scores]) for n in names}
    infos = {episode.index: episode.info for episode in episodes}.values()  # of a game, however many agents acted
    names = sorted({name for info in infos for name in info})
    return sums | {f"episode/{n}": _pair([float(info[n]) for info in infos if n in info]) for n in names}


def text_sums(before: Mapping[str, TextCounts], now: Mapping[str, TextCounts]) -> Sums:
    """Shares of the texts since `before` that each scorer saw without their oldest turns, and with a turn cut."""
    sums: Sums = {}
    for name, counts in now.items():
        texts = counts.texts - before[name].texts
        sums[f"scores/{name}/truncated"] = (counts.truncated - before[name].truncated, texts)
        sums[f"scores/{name}/shortened"] = (counts.shortened - before[name].shortened, texts)
    return sums


def rollout_sums(rollouts: Rollouts, rewards: torch.Tensor, kl_coef: float, has_critic: bool = True) -> Sums:
    """KL to the reference (k1 and k3) if it ran, entropy, values and returns, over tokens that have loss."""
    mask = rollouts.loss_mask
    values, returns = rollouts.values[mask].double(), rollouts.returns[mask].double()
    errors = returns - values
    # of freely sampled tokens the mean of -log p is the entropy of the distribution they were sampled from
    entropies = -rollouts.sampler_logprobs
    if rollouts.choices is not None:
        entropies = torch.tensor([choice.entropy for choice in rollouts.choices])
    episodes = float(rollouts.has_reward.sum())
    replies = float(rollouts.has_reward[rollouts.episode_of_row].sum())  # several per episode of several turns
    tokens = float(mask.sum())

    def per_token(numbers: torch.Tensor) -> tuple[float, float]:
        return numbers.sum().item(), tokens

    sums: Sums = {
        "policy/entropy": per_token(entropies[mask].double()),
        "reward/total": (rewards[mask].double().sum().item(), episodes),
        "rollout/trained_tokens": (tokens, 1.0),
    }
    if len(rollouts.reference_logprobs):
        x = (rollouts.old_logprobs - rollouts.reference_logprobs)[mask].double()
        sums |= {
            "kl/reference": (x.sum().item(), replies),
            "kl/reference_per_token": per_token(x),
            "kl/reference_k3": per_token(torch.expm1((-x).clamp(max=80)) + x),
            "reward/kl_penalty": (kl_coef * x.sum().item(), episodes),
        }
    sums["sampler/weight"] = per_token(rollouts.correction[mask].double())
    # the weights of a reply that is not masked are above 0
    dropped = (rollouts.row_sums(rollouts.correction) == 0).numpy() & rollouts.row_has_loss
    sums["sampler/masked_replies"] = (float(dropped.sum()), float(rollouts.row_has_loss.sum()))
    if has_critic:
        sums |= {
            "values/mean": per_token(values),
            "values/squares": per_token(values**2),
            "returns/mean": per_token(returns),
            "returns/squares": per_token(returns**2),
            "values/errors": per_token(errors),
            "values/squared_errors": per_token(errors**2),
        }
    return sums


def iteration_metrics(
    means: Mapping[str, float], learned: Learned, mismatch: LogprobMismatch, vf_coef: float
) -> dict[str, float]:
    """The metrics of an iteration, from reduced means."""
    m, losses = dict(means), learned.means
    m["loss/policy"] = m["loss/total"] = losses["policy_loss"]
    if "values/mean" in m:
        variance = m.pop("returns/squares") - m["returns/mean"] ** 2
        residual = m.pop("values/squared_errors") - m.pop("values/errors") ** 2
        m["values/explained_variance"] = 1 - residual / variance if variance > 1e-12 else math.nan
        m["values/std"] = _std(m.pop("values/squares"), m["values/mean"])
        m["returns/std"] = math.sqrt(max(0.0, variance))
        m["loss/value"] = losses["value_loss"]
        m["loss/total"] += vf_coef * losses["value_loss"]
    m["reward/std"] = _std(m.pop("reward/squares"), m["reward/mean"])
    if "kl/reference" in m:
        m["kl/sqrt_reference"] = math.sqrt(max(0.0, m["kl/reference"]))
    m |= {f"policy/{name}": losses[name] for name in ("approx_kl", "clip_fraction", "ratio")}
    m["rollout/logprob_mismatch"], m["rollout/logprob_mismatch_max"] = mismatch.mean, mismatch.largest
    m["sampler/kl"], m["sampler/chi_square"] = mismatch.kl, mismatch.chi_square
    m["sampler/ratio"], m["sampler/far"] = mismatch.ratio, mismatch.far
    m["policy/stopped_early"], m["policy/skipped_updates"] = float(learned.stopped_early), float(learned.skipped)
    m["policy/learning_rate"] = learned.rate
    return m


def _pair(numbers: Sequence[float]) -> tuple[float, float]:
    """The sum, which is 0 if it is nothing but rounding, as of strengths that sum to 0 in each group; and the count."""
    total = float(np.sum(numbers)) if len(numbers) else 0.0
    return (0.0 if abs(total) <= ROUNDING * np.abs(numbers).sum() else total), float(len(numbers))


def _std(squares: float, mean: float) -> float:
    return math.sqrt(max(0.0, squares - mean * mean))


@aid("the line of an iteration")
def show_line(iteration: int, iterations: int, metrics: Mapping[str, float]) -> None:
    """Print the iteration of that number, from 1, in one line."""
    shown = [f"{short_name(name)} {metrics[name]:.3g}" for name in LINE if name in metrics]
    say(f"iteration {iteration}/{iterations}: {', '.join(shown)}")


@aid("the figures of the status line", list)
def status_figures(metrics: Mapping[str, float], alarm: str, update: int) -> list[str]:
    """The figures of the iteration that ended with this update for the status line, after the alarm if there is one."""
    names = ("rollout/tokens_per_second", "reward/mean", "kl/reference", "eval/reward/mean")
    return [*filter(None, [alarm]), *(status_figure(n, metrics[n], update) for n in names if n in metrics)]


@final
class Clock:
    """Seconds of each phase, on this rank; each is a heartbeat, and shown in the status line."""

    def __init__(self, supervisor: Supervisor, line: StatusLine) -> None:
        self.supervisor, self.line, self.now = supervisor, line, ""
        self.found: dict[str, float] = {}
        self.since = time.perf_counter()

    def phase(self, name: str) -> str:
        """Begin a phase; returns the previous one."""
        before, now = self.now, time.perf_counter()
        if before:
            self.found[before] = self.found.get(before, 0.0) + now - self.since
        self.now, self.since = name, now
        self.supervisor.heartbeat(name)
        self.line.update(doing=PHASES.get(name, name))
        return before

    def seconds(self, tokens: float) -> dict[str, float]:
        """`time/` of each phase, and trained tokens per second."""
        self.phase("")
        total = sum(self.found.values()) - self.found.get("evaluate", 0.0)
        found = {f"time/{name}": value for name, value in self.found.items()}
        found["time/rollout"] = self.found.get("generate", 0.0) + self.found.get("score", 0.0)
        return found | {"time/iteration": total, "rollout/tokens_per_second": tokens / max(total, 1e-9)}


@dataclass(frozen=True)
class TimedReward:
    """A reward function with a phase of its own."""

    inner: RewardFunction
    clock: Clock

    def rewards(self, samples: Sequence[Sample]) -> list[SampleReward]:
        """The inner function's rewards."""
        before = self.clock.phase("score")
        try:
            return self.inner.rewards(samples)
        finally:
            self.clock.phase(before)
