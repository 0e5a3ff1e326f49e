"""Figures of an iteration, over all ranks, under trlx's names where it has them."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch

from lmgym.distributed.ranks import all_gather_objects, sum_over_ranks
from lmgym.environments.protocol import Sample, SampleReward
from lmgym.environments.rollout_engine import Episode
from lmgym.runs.supervisor import Supervisor
from lmgym.scoring.scorers import TextCounts
from ppo.experience import LogprobMismatch
from ppo.learner import Learned
from ppo.rollouts import Rollouts

Sums = dict[str, tuple[float, float]]
"""a sum and the number that it is of"""


def reduce_means(sums: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """The mean of each over all ranks; NaN where nothing was counted anywhere. Collective.

    A rank may lack names that others have, as one without episodes does.
    """
    names = sorted(set().union(*all_gather_objects(set(sums))))
    pairs = [sums.get(name, (0.0, 0.0)) for name in names]
    flat = sum_over_ranks(torch.tensor(pairs, dtype=torch.float64)).tolist()
    return {name: total / count if count else math.nan for name, (total, count) in zip(names, flat, strict=True)}


def total_reward(episode: Episode) -> float | None:
    """What an agent earned in an episode; None where a part of it could not be had."""
    rewards = [step.reward for step in episode.steps]
    if any(reward is None for reward in rewards):
        return None
    return float(sum(sum(r) if isinstance(r, tuple) else r for r in rewards if r is not None))


def of_episodes(episodes: Sequence[Episode]) -> Sums:
    """Rewards, lengths and how replies ended."""
    earned = [reward for episode in episodes if (reward := total_reward(episode)) is not None]
    steps = [step for episode in episodes for step in episode.steps]
    tokens = [len(step.completion.ids) for step in steps]
    sums: Sums = {
        "reward/mean": _pair(earned),
        "reward/squares": _pair([x * x for x in earned]),
        "rollout/reply_tokens": _pair(tokens),
        "rollout/turns": (len(steps), len(episodes)),
        "rollout/truncated_fraction": _pair([step.completion.finish_reason == "length" for step in steps]),
        "rollout/cut_prompts": _pair([step.dropped_turns > 0 or step.shortened > 0 for step in steps]),
        "rollout/shortened_prompts": _pair([step.shortened > 0 for step in steps]),
        "rollout/failed_rewards": (len(episodes) - len(earned), len(episodes)),
        "rollout/truncated_episodes": _pair([episode.truncated for episode in episodes]),
    }
    names = sorted({name for step in steps for name in step.scores})
    sums |= {f"scores/{n}": _pair([s.scores[n] for s in steps if n in s.scores]) for n in names}
    names = sorted({name for episode in episodes for name in episode.info})
    return sums | {f"episode/{n}": _pair([float(e.info[n]) for e in episodes if n in e.info]) for n in names}


def of_texts(before: Mapping[str, TextCounts], now: Mapping[str, TextCounts]) -> Sums:
    """Shares of the texts since then that each scorer saw without their oldest turns, and with a turn cut."""
    sums: Sums = {}
    for name, counts in now.items():
        texts = counts.texts - before[name].texts
        sums[f"scores/{name}/truncated"] = (counts.truncated - before[name].truncated, texts)
        sums[f"scores/{name}/shortened"] = (counts.shortened - before[name].shortened, texts)
    return sums


def of_rollouts(rollouts: Rollouts, rewards: torch.Tensor, kl_coef: float) -> Sums:
    """KL to the reference (k1 and k3), entropy, values and returns, over the tokens that have loss."""
    kept = rollouts.trained
    x = (rollouts.logprobs - rollouts.reference_logprobs)[kept].double()
    values, returns = rollouts.values[kept].double(), rollouts.returns[kept].double()
    off = returns - values
    episodes = float(rollouts.kept.sum())
    replies = float(rollouts.kept[rollouts.episode_of_row].sum())  # several an episode, where that has several turns
    tokens = float(kept.sum())

    def mean_of(numbers: torch.Tensor) -> tuple[float, float]:
        return numbers.sum().item(), tokens

    return {
        "policy/kl": (x.sum().item(), replies),
        "policy/kl_per_token": mean_of(x),
        "policy/kl_k3": mean_of(torch.expm1((-x).clamp(max=80)) + x),
        # of tokens that were sampled freely the mean of -log p is the entropy of what they were drawn from
        "policy/entropy": mean_of(-rollouts.sampler_logprobs[kept].double()),
        "values/mean": mean_of(values),
        "values/squares": mean_of(values**2),
        "returns/mean": mean_of(returns),
        "returns/squares": mean_of(returns**2),
        "values/off": mean_of(off),
        "values/off_squares": mean_of(off**2),
        "rewards/kl_part": (kl_coef * x.sum().item(), episodes),
        "rewards/sum": (rewards[kept].double().sum().item(), episodes),
        "rollout/trained_tokens": (tokens, 1.0),
    }


def finished(
    means: dict[str, float], learned: Learned, gap: LogprobMismatch, running: tuple[float, float], vf_coef: float
):
    """The line of an iteration, out of reduced means."""
    m = dict(means)
    variance = m.pop("returns/squares") - m["returns/mean"] ** 2
    residual = m.pop("values/off_squares") - m.pop("values/off") ** 2
    m["values/explained_variance"] = 1 - residual / variance if variance > 1e-12 else math.nan
    m["values/std"] = _std(m.pop("values/squares"), m["values/mean"])
    m["returns/std"] = _std(variance + m["returns/mean"] ** 2, m["returns/mean"])
    m["rollout_scores/mean"], m["rollout_scores/std"] = (
        m["reward/mean"],
        _std(m.pop("reward/squares"), m["reward/mean"]),
    )
    m["rollout_scores/running_mean"], m["rollout_scores/running_std"] = running
    m["policy/sqrt_kl"] = math.sqrt(max(0.0, m["policy/kl"]))
    m["policy/approx_kl"], m["policy/clipfrac"] = learned.means["approx_kl"], learned.means["clipfrac"]
    m["ratio"] = learned.means["ratio"]
    m["losses/policy_loss"], m["losses/value_loss"] = learned.means["policy_loss"], learned.means["value_loss"]
    m["losses/total_loss"] = learned.means["policy_loss"] + vf_coef * learned.means["value_loss"]
    m["policy/sampler_gap"], m["policy/sampler_gap_max"] = gap.mean, gap.largest
    m["policy/stopped_early"], m["policy/skipped_updates"] = float(learned.stopped_early), float(learned.skipped)
    return m


def _pair(numbers: Sequence[float]) -> tuple[float, float]:
    return float(np.sum(numbers)) if len(numbers) else 0.0, float(len(numbers))


def _std(squares: float, mean: float) -> float:
    return math.sqrt(max(0.0, squares - mean * mean))


@final
class Clock:
    """Seconds of each phase, on this rank; each is a sign of life."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor, self.now = supervisor, ""
        self.found: dict[str, float] = {}
        self.since = time.perf_counter()

    def phase(self, name: str) -> str:
        """Begins a phase; the one before."""
        before, now = self.now, time.perf_counter()
        if before:
            self.found[before] = self.found.get(before, 0.0) + now - self.since
        self.now, self.since = name, now
        self.supervisor.heartbeat(name)
        return before

    def seconds(self, tokens: float) -> dict[str, float]:
        """time/ of each phase, and the tokens that were trained a second."""
        self.phase("")
        total = sum(self.found.values()) - self.found.get("evaluate", 0.0)
        found = {f"time/{name}": value for name, value in self.found.items()}
        generated = self.found.get("rollout_generate", 0.0)
        found["time/rollout_time"] = generated + self.found.get("rollout_score", 0.0)
        return found | {"time/iteration": total, "rollout/tokens_per_second": tokens / max(total, 1e-9)}


@dataclass(frozen=True)
class TimedReward:
    """A judge whose time is not that of the sampling."""

    inner: Any
    clock: Clock

    def rewards(self, samples: Sequence[Sample]) -> list[SampleReward]:
        """The inner one's."""
        before = self.clock.phase("rollout_score")
        try:
            return self.inner.rewards(samples)
        finally:
            self.clock.phase(before)
