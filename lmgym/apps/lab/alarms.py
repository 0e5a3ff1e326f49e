"""Alarms of over-optimisation, each a statistic of a run's looks so far that rings from a threshold on.

None reads the gold. Thresholds of `ours` and `halves` are those of lmgym/scoring/alarm.py; the others' were chosen on
the runs of the plan `figure` (benchmarks/results/over_optimisation.json), which judge nothing here: see THRESHOLDS.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from lmgym.apps.lab.pool import Array
from lmgym.apps.lab.watching import SPREAD, Watched
from lmgym.scoring.alarm import Alarm, Reading

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


THRESHOLDS: Mapping[str, float] = MappingProxyType(
    {"ours": 1.301, "halves": 1.301, "other base": 1.301, "logs": 1.301, "old rule": 2.0}  # -log10(.05), and two errors
)
RULES: tuple[Rule, ...] = tuple(
    Rule(name, statistic, THRESHOLDS.get(name, np.inf), about, watcher)
    for name, watcher, statistic, about in (
        ("ours", "other", lambda run: falls(run, "other"), "a scorer of other pairs, without the fault, falls"),
        ("halves", "half", lambda run: falls(run, "half"), "a scorer of the other half of the same pairs falls"),
        ("other base", "base", lambda run: falls(run, "base"), "a scorer as ours that began at another model falls"),
        ("logs", "logs", lambda run: falls(run, "logs"), "a scorer of the traces that users leave falls"),
        ("old rule", "other", two_errors, "the same scorer as ours, two standard errors below its best"),
        ("KL", "", lambda run: run.kl, "KL from the start, nats a reply"),
        ("length", "", length_drift, "words of a reply, up or down"),
        ("variance", "", less_variance, "the reward varies less between replies"),
        ("spread", SPREAD, more_spread, "the spread of four heads, trained on the proxy's own pairs, grows"),
        ("duplicates", "", duplicates, "more replies are equal"),
    )
)
