"""The KL up to which to optimise a scorer, without gold: scorers of its halves, one optimised, one watching.

Design decisions:
- Cross-fit: the best of N by either half is scored by the other half, in standard deviations of its own scores over
  the pool, and the mean of both is watched. The budget is the KL at which that mean is highest.
- A half has half of the pairs, and is over-optimised earlier than a scorer of all: a KL that halves find is cautious.
- Halves see errors of variance. What their labels have wrong, and what the model at which both begin has wrong, both
  halves share, and do not see.
- It is judged by worlds left out: the utility lost against the best N, beside the constant N that loses least in the
  other worlds, and the largest N of the pool. It did not beat the constant (docs/over_optimisation.md), so that
  `lmgym lab budget` says the constant, and what halves find beside it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from lmgym.apps.lab.curves import DECIMALS, Curve, best_of_n_kl_exact, sizes_of
from lmgym.apps.lab.plan import BEST_OF_N, Plan
from lmgym.apps.lab.pool import Array
from lmgym.apps.lab.steps import folder_of
from lmgym.scoring.best_of_n_estimates import best_of_n_values
from lmgym.statistics import Estimate, mean

CONSTANT = 16
"""the N whose best loses least, on average over the worlds of the plan `figure`"""
CONSTANT_KL = math.log(CONSTANT) - (CONSTANT - 1) / CONSTANT
"""nats a reply"""
LOST_BY = MappingProxyType({"constant": 0.008, "budget": 0.140, "none": 0.144})
"""hidden utility a reply, against the best N, in these worlds: each judged by a constant of the others"""


@dataclass(frozen=True)
class Budget:
    """Gains of the best of each N by both halves."""

    sizes: Sequence[int]
    kl: Sequence[float]
    """nats, the mean of both halves' best of N"""
    optimised: Sequence[float]
    """gain of the half that chooses, in its own standard deviations"""
    watched: Sequence[float]
    """gain of the other half"""

    @property
    def place(self) -> int:
        """Of the N at which the watched gain is highest."""
        return int(np.argmax(self.watched))


def cross_fit(first: Array, second: Array) -> Budget:
    """Of both halves' scores [prompts, N] of one pool."""
    halves = [_standardised(first), _standardised(second)]
    sizes = sizes_of(first.shape[1])
    found = []
    for n in sizes:
        own, other, kl = (
            np.mean([function(a, b, n) for a, b in (halves, halves[::-1])])
            for function in (
                lambda a, b, n: best_of_n_values(a, a, n).mean(),
                lambda a, b, n: best_of_n_values(a, b, n).mean(),
                lambda a, b, n: best_of_n_kl_exact(a, n),
            )
        )
        found.append((float(kl), float(own), float(other)))
    kl, own, other = zip(*found, strict=True)
    return Budget(sizes, kl, own, other)


@dataclass(frozen=True)
class Case:
    """A scorer in a world: the gold of the best of each N by it, and its halves' budget."""

    world: int
    proxy: str
    gold: Array
    """[sizes]"""
    budget: Budget

    def lost(self, place: int) -> float:
        """Gold lost against the best N."""
        return float(self.gold.max() - self.gold[place])


def judged(cases: Sequence[Case]) -> Mapping[str, Estimate]:
    """Gold lost by each way to choose N, means with intervals over worlds.

    The constant of a world is the N that loses least in all other worlds.
    """
    worlds = [case.world for case in cases]
    constants = [least_loss(np.stack([other.gold for other in cases if other.world != case.world])) for case in cases]
    lost = {
        "budget": [case.lost(case.budget.place) for case in cases],
        "constant": [case.lost(place) for case, place in zip(cases, constants, strict=True)],
        "none": [case.lost(len(case.gold) - 1) for case in cases],
    }
    lost["budget - constant"] = [a - b for a, b in zip(lost["budget"], lost["constant"], strict=True)]
    return {name: mean(values, worlds) for name, values in lost.items()}


def read_cases(folder: Path, plan: Plan, curves: Sequence[Curve]) -> list[Case]:
    """Of all curves of the best of N whose proxies have halves that have scored the pool, too."""
    found = []
    for curve in curves:
        if curve.method != BEST_OF_N or curve.proxy not in plan.halves:
            continue
        pool = folder / folder_of(curve.world) / "pool"
        files = [pool / f"{half}.npy" for half in plan.halves[curve.proxy]]
        if all(file.is_file() for file in files):
            first, second = (np.load(file).astype(np.float64) for file in files)
            gold = np.array([point.gold for point in curve.points])
            found.append(Case(curve.world, curve.proxy, gold, cross_fit(first, second)))
    return found


def least_loss(gold: Array) -> int:
    """The place of the N that loses least, on average over cases, of the gold [cases, sizes] of the best of each."""
    return int(np.argmin((gold.max(1, keepdims=True) - gold).mean(0)))


def _standardised(scores: Array) -> Array:
    rounded = scores.astype(np.float64).round(DECIMALS)
    return (rounded - rounded.mean()) / rounded.std()
