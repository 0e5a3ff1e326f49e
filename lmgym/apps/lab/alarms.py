"""Alarms of over-optimisation, each a statistic of a run's looks so far that rings from a threshold on.

None reads the gold. Alarms on a watcher ring as lmgym/scoring/alarm.py does, the old rule as it did. Thresholds of KL,
length, variance and duplicates were chosen before any run of the plan `alarms`: each is the 95th percentile of the
largest statistic in the sound runs of the plan `figure` (benchmarks/results/over_optimisation.json). That plan has no
scorer of heads: the spread rings where it has grown by half.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from lmgym.apps.lab.pool import Array
from lmgym.apps.lab.watching import SPREAD, Watched
from lmgym.scoring.alarm import ALPHA, Alarm, Reading

Statistic = Callable[[Watched], Array]
"""[looks]: larger is more suspicious; -inf where it cannot say"""


@dataclass(frozen=True)
class Rule:
    """An alarm: rings at the first look whose statistic is at least the threshold."""

    name: str
    statistic: Statistic
    threshold: float
    about: str
    watcher: str = ""
    """the role of the scorer that it reads, if it reads one"""

    def reads(self, run: Watched) -> bool:
        """True if the run has what it needs."""
        return not self.watcher or self.watcher in run.by


def first_at_least(statistic: Array, threshold: float) -> int | None:
    """The place of the first value that is at least the threshold."""
    ringing = np.flatnonzero(statistic >= threshold)
    return int(ringing[0]) if len(ringing) else None


def falls(run: Watched, role: str) -> Array:
    """-log10 of the alpha at which lmgym's alarm rings: a watcher falls at a higher reward."""
    alarm, found = Alarm(), []
    spread = float(run.by[role][0].std(ddof=1))
    for at, reward, score in zip(run.at, run.reward, run.by[role], strict=True):
        alarm.update(float(at), Reading.of(reward, run.prompts), Reading.of(score, run.prompts), spread)
        found.append(-np.log10(max(alarm.alpha_needed, 1e-300)))
    return np.array(found)


def two_errors(run: Watched) -> Array:
    """PPO's rule of before: standard errors by which the watcher's mean is below its best, at a higher reward."""
    scores, rewards = run.by["other"].mean(1), run.reward.mean(1)
    errors = run.by["other"].std(1, ddof=1) / np.sqrt(run.by["other"].shape[1])
    found = np.full(len(scores), -np.inf)
    for k in range(1, len(scores)):
        best = int(scores[:k].argmax())
        if rewards[k] > rewards[best]:
            found[k] = (scores[best] - scores[k]) / errors[k]
    return found


def length_drift(run: Watched) -> Array:
    """|log| of the words of a reply over those at the start."""
    words = run.words.mean(1)
    return np.abs(np.log(np.maximum(words, 1e-9) / words[0]))


def less_variance(run: Watched) -> Array:
    """log of the reward's standard deviation over replies at the start over that of now."""
    spread = run.reward.std(1, ddof=1)
    return np.log(spread[0] / np.maximum(spread, 1e-9))


def more_spread(run: Watched) -> Array:
    """log of the members' mean spread over that at the start."""
    spread = run.by[SPREAD].mean(1)
    return np.log(spread / spread[0])


def duplicates(run: Watched) -> Array:
    """The share of replies that another prompt has too, above that at the start."""
    return run.distinct[0] - run.distinct


RINGS = -float(np.log10(ALPHA))


def _watching(name: str, role: str, about: str) -> Rule:
    """Lmgym's alarm on a watcher."""
    return Rule(name, partial(falls, role=role), RINGS, about, role)


RULES: tuple[Rule, ...] = (
    _watching("ours", "other", "a scorer of other pairs, without the fault, falls"),
    _watching("halves", "half", "a scorer of the other half of the same pairs falls"),
    _watching("other base", "base", "a scorer as ours that began at another model falls"),
    _watching("logs", "logs", "a scorer of the traces that users leave falls"),
    Rule("old rule", two_errors, 2.0, "the same scorer as ours, two standard errors below its best", "other"),
    Rule("KL", lambda run: run.kl, 7.4, "KL from the start, nats a reply"),
    Rule("length", length_drift, 0.27, "words of a reply, up or down"),
    Rule("variance", less_variance, 0.38, "the reward varies less between replies"),
    Rule(
        "spread",
        more_spread,
        float(np.log(1.5)),
        "the spread of four heads, trained on the proxy's own pairs, grows",
        SPREAD,
    ),
    Rule("duplicates", duplicates, 0.12, "more replies are equal"),
)
