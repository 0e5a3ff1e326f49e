"""The alarm of over-optimisation: a score that is not optimised falls while the reward that is optimised rises.

Each evaluation, or look, is compared with every earlier one, prompt by prompt where both have the same prompts. The
levels of all comparisons of a run, however long, add up to ALPHA: look k has ALPHA / (k (k - 1)), and each of its k - 1
comparisons an equal part of that (a union bound: looks may depend on each other in any way). So at most ALPHA of the
runs ring whose score's mean never fell by more than the tolerance, given enough prompts for Student's t. It says
nothing about what the score measures.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, final

import numpy as np
from scipy import special

from lmgym.statistics import Floats, mean_exceeds, units_to_exceed, welch_exceeds

ALPHA = 0.05
TOLERANCE = 0.1
"""of a fall, in standard deviations of the score over replies at the first look"""
SPREAD_OF_DIFFERENCES = math.sqrt(2)
"""in the same unit, of scores that do not depend on the prompt"""


@dataclass(frozen=True)
class Reading:
    """A mean over independent units, such as prompts."""

    mean: float
    error: float
    """its standard error"""
    units: int
    names: Sequence[str] = field(default_factory=list)
    """of the units, in order: readings of the same ones are paired"""
    values: Sequence[float] = field(default_factory=list)
    """the mean of each"""

    @classmethod
    def of(cls, values: Sequence[float], units: Sequence[str]) -> "Reading":
        """Of values[rows] and the unit of each row; values that are NaN are left out."""
        known = [(unit, value) for unit, value in zip(units, values, strict=True) if not np.isnan(value)]
        by_unit: dict[str, list[float]] = {}
        for unit, value in known:
            by_unit.setdefault(unit, []).append(value)
        names = sorted(by_unit)
        means = np.array([sum(by_unit[name]) / len(by_unit[name]) for name in names])
        error = float(means.std(ddof=1) / np.sqrt(len(means))) if len(means) > 1 else float("nan")
        return cls(float(means.mean()) if names else float("nan"), error, len(names), names, means.tolist())


@dataclass(frozen=True)
class Look:
    """An evaluation: what is not optimised, and what is."""

    at: float
    """the update, step or round"""
    score: Reading
    reward: Reading


@dataclass(frozen=True)
class Fall:
    """A fall of the score since an earlier look, at which the reward was lower."""

    since: Look
    now: Look
    p_value: float
    level: float


@final
@dataclass
class Alarm:
    """The test over a run's looks."""

    spread: float = 0.0
    """standard deviation of the score over replies at the first look"""
    looks: list[Look] = field(default_factory=list)
    raised_at: float = -1
    fall: Fall | None = None
    """the one that raised it, while it is on"""
    alpha_needed: float = math.inf
    """of the last look: the least alpha, in place of ALPHA, at which its clearest fall would ring; above 1: at none"""

    def update(self, at: float, reward: Reading, score: Reading, spread: float) -> bool:
        """Adds a look; True if the score is significantly below an earlier one, at a significantly higher reward."""
        now = Look(at, score, reward)
        if not self.looks:
            self.spread = spread
        earlier = [look for look in self.looks if look.score.units and look.reward.units]
        self.looks.append(now)
        self.fall = self._fall(now, earlier)
        if self.fall and self.raised_at < 0:
            self.raised_at = at
        return self.fall is not None

    @property
    def tolerance(self) -> float:
        """In units of the score."""
        return TOLERANCE * self.spread

    def _fall(self, now: Look, earlier: Sequence[Look]) -> Fall | None:
        """The clearest fall that counts, among those since the `earlier` looks."""
        k, self.alpha_needed = len(self.looks), math.inf
        if not earlier or k < 2:
            return None
        level = _level(k)
        falls = _exceed([look.score for look in earlier], now.score, -1, self.tolerance)
        rises = _exceed([look.reward for look in earlier], now.reward, 1, 0.0)
        counted = np.where(rises <= ALPHA, falls, 1.0)
        place = int(counted.argmin())
        self.alpha_needed = float(counted[place]) * ALPHA / level
        return Fall(earlier[place], now, float(counted[place]), level) if counted[place] <= level else None

    def label(self, when: str = "update", scorer: str = "eval scorer") -> str:
        """The alarm in the status line; empty if it was not raised."""
        return f"ALARM at {when} {self.raised_at:,}: {scorer} falls" if self.raised_at >= 0 else ""

    def message(
        self,
        when: str = "update",
        scorer: str = "the evaluation scorer",
        remedy: str = "raise init_kl_coef",
    ) -> str:
        """The line that users see, on the last look, which raised the alarm."""
        assert self.fall is not None
        since, now = self.fall.since, self.fall.now
        figures = f"p {self.fall.p_value:.1g}, level {self.fall.level:.1g}, {now.score.units} prompts"
        return (
            f"ALARM at {when} {now.at:,}: {scorer}'s score fell from {since.score.mean:.3f} at {when} {since.at:,} to "
            f"{now.score.mean:.3f}, by more than the tolerance of {self.tolerance:.3f} ({figures}), while the reward "
            f"rose from {since.reward.mean:.3f} to {now.reward.mean:.3f}: the policy exploits its reward; look at "
            f"samples, stop at an earlier checkpoint, or {remedy}"
        )

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers, for a checkpoint."""
        return {"spread": self.spread, "looks": [asdict(look) for look in self.looks], "raised_at": self.raised_at}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state; of one from before looks were kept, only when it was raised."""
        self.spread, self.raised_at = state.get("spread", 0.0), state.get("raised_at", -1)
        self.looks = [
            Look(look["at"], Reading(**look["score"]), Reading(**look["reward"])) for look in state.get("looks", ())
        ]


def prompts_needed(looks: int) -> int:
    """The fewest prompts that show a fall by one spread beyond the tolerance at the last of so many looks, in 80%."""
    return units_to_exceed(SPREAD_OF_DIFFERENCES, 1.0, _level(looks))


def smallest_fall(prompts: int, looks: int) -> float:
    """The fall, in spreads, that so many prompts show in 80% of cases at the last of so many looks.

    It is that of scores which do not depend on the prompt, and smaller where they do.
    """
    quantiles = -float(special.stdtrit(prompts - 1, _level(looks)) + special.stdtrit(prompts - 1, 0.2))
    return TOLERANCE + SPREAD_OF_DIFFERENCES * quantiles / math.sqrt(prompts)


def preview(prompts: int, looks: int, scorer: str = "the evaluation scorer") -> str:
    """A line on what the alarm can show in a run with so many evaluations, and what it promises."""
    if prompts < 2 or looks < 2:
        return f"no alarm: {prompts} prompt(s) and {looks} evaluation(s) allow no comparison; needed: 2 or more of each"
    needed = prompts_needed(looks)
    more = f"; for {1 + TOLERANCE:g}: {needed} prompts" if prompts < needed else ""
    fall = f"{smallest_fall(prompts, looks):.2g} standard deviations"
    return (
        f"{scorer}'s alarm: {prompts:,} prompts show a fall of {fall} in 4 of 5 cases, up to the last of "
        f"{looks:,} evaluations{more}; of runs whose score never falls by more than {TOLERANCE:g}, at most {ALPHA:.0%} "
        "ring"
    )


def _level(look: int) -> float:
    """That of each comparison at a look, from 2 on."""
    return ALPHA / (look * (look - 1)) / (look - 1)


def _exceed(earlier: Sequence[Reading], now: Reading, sign: int, bound: float) -> Floats:
    """p-value[earlier] of sign * (now - earlier) having a mean of at most the bound; 1 where nothing can be said."""
    found = np.ones(len(earlier))
    paired = [i for i, one in enumerate(earlier) if now.names and one.names == now.names]
    if paired:
        differences = np.array(now.values) - np.array([earlier[i].values for i in paired])
        found[paired] = mean_exceeds(sign * differences, bound)
    for i in {*range(len(earlier))} - {*paired}:
        one = earlier[i]
        found[i] = welch_exceeds(sign * (now.mean - one.mean), (one.error, now.error), (one.units, now.units), bound)
    return found
