"""Curves: hidden utility and the optimised score along the distance from the start, of runs and of the best of N.

Design decisions:
- A look's KL is that of the first rollouts behind it, which the policy of the look has sampled; the last look has none
  and no place on a curve.
- The KL of the best of N is exact for the pool: KL = sum_s q_s log(q_s / p_s) over the distinct scores s of a prompt's
  replies, with p_s their share and q_s = F(s)^N - F(s-)^N the chance that the best of N has score s. It is at most
  log N - (N - 1)/N, and less where replies are equal.
- At equal length: gold - b (words - words at the start), where b is the slope of gold on words within the looks (or,
  of a pool, within prompts). There is none where fewer than FEW_SHORT of the replies are as short as the start's mean.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lmgym.apps.lab.plan import Plan
from lmgym.apps.lab.pool import Array, Pool
from lmgym.apps.lab.record import is_done
from lmgym.apps.lab.steps import folder_of, plan_steps
from lmgym.report.run_files import RunFiles
from lmgym.scoring.best_of_n_estimates import best_of_n_values

FEW_SHORT = 0.05
LOST = 0.2
"""the share of its gain that an over-optimised run loses at least"""
DECIMALS = 5
"""of scores that count as equal: sums in another order differ behind them"""

Looks = Mapping[int, list[dict[str, Any]]]
"""rows by update, in the order of the prompts"""


@dataclass(frozen=True)
class Point:
    """A policy along the way; means over held-out prompts."""

    at: float
    """updates, or N"""
    kl: float | None
    """nats a reply"""
    reward: float
    """the optimised score"""
    gold: float
    """hidden utility"""
    gold_error: float
    """standard error over prompts of the gold's gain since the start, on the same prompts"""
    words: float
    equal_length: float | None
    """the gold at the start's mean length"""

    @property
    def distance(self) -> float:
        """The root of the KL, as Gao et al. (2022) have it; NaN where the KL is unknown."""
        return max(self.kl, 0.0) ** 0.5 if self.kl is not None else float("nan")


@dataclass(frozen=True)
class Curve:
    """A run's points; the first is the start."""

    proxy: str
    method: str
    kl_weight: float
    world: int
    seed: int
    points: list[Point]

    @property
    def placed(self) -> list[Point]:
        """Points whose KL is known, by KL."""
        return sorted((point for point in self.points if point.kl is not None), key=lambda point: point.kl or 0.0)

    def gains(self) -> tuple[Array, Array]:
        """(root of the KL [points], gold's gain since the start [points]) of those with a KL."""
        start = self.points[0].gold
        return np.array([point.distance for point in self.placed]), np.array([p.gold - start for p in self.placed])

    @property
    def peak(self) -> Point:
        """The point with the highest gold."""
        return max(self.placed, key=lambda point: point.gold)

    @property
    def lost(self) -> float | None:
        """The share of the gold's gain at its peak that is lost at the last look; None without a gain."""
        best = self.peak.gold - self.points[0].gold
        return (self.peak.gold - self.points[-1].gold) / best if best > 0 else None

    @property
    def fallen(self) -> bool:
        """True if LOST of the gain or more is lost at the last look, and more than two standard errors of gold."""
        gain, loss = self.peak.gold - self.points[0].gold, self.peak.gold - self.points[-1].gold
        return loss >= LOST * gain and loss > 2 * self.points[-1].gold_error


def read_curves(folder: Path, plan: Plan) -> list[Curve]:
    """Those of all runs of a plan that are complete."""
    done = {step.name for step in plan_steps(plan) if is_done(folder, step)}
    pools: dict[int, Pool] = {}
    found = []
    for run in plan.runs:
        here, name = folder / folder_of(run.world), f"world {run.world}"
        if run.samples:
            if f"{name}: pool by {run.proxy}" not in done:
                continue
            if run.world not in pools:
                pools[run.world] = Pool.read(here / "pool")
            scores = np.load(here / "pool" / f"{run.proxy}.npy").astype(np.float64)
            points = pool_points(pools[run.world], scores)
        elif f"{name}: {run.name}" in done:
            points = run_points(here / "runs" / run.name, read_looks(here / "runs" / run.name))
        else:
            continue
        found.append(Curve(run.proxy, run.method, run.kl, run.world, run.seed, points))
    return found


def pool_points(pool: Pool, scores: Array) -> list[Point]:
    """The best of 1, 2, 4, ... replies of a pool by scores [prompts, N]."""
    scores = scores.round(DECIMALS)
    slope = _slope(pool.gold, pool.words)
    start, points = best_of_n_values(scores, pool.gold, 1), list[Point]()
    short = (pool.words <= pool.words.mean()).astype(np.float64)
    for n in sizes_of(scores.shape[1]):
        gold, reward, words, as_short = (
            best_of_n_values(scores, values, n) for values in (pool.gold, scores, pool.words, short)
        )
        equal = gold.mean() - slope * (words.mean() - pool.words.mean()) if as_short.mean() >= FEW_SHORT else None
        kl = best_of_n_kl_exact(scores, n)
        points.append(_point(n, kl, reward, gold, start, words, equal))
    return points


def sizes_of(replies: int) -> list[int]:
    """1, 2, 4, ... up to the number of replies."""
    return [2**power for power in range(replies.bit_length())]


def best_of_n_kl_exact(scores: Array, n: int) -> float:
    """Mean KL, nats, of the best of n from the policy, over prompts, of scores [prompts, N] with ties."""
    total = 0.0
    for row in scores:
        _, counts = np.unique(row, return_counts=True)
        share = counts / len(row)
        above = np.minimum(np.cumsum(share), 1.0)
        chosen = above**n - np.maximum(above - share, 0.0) ** n
        some = chosen > 0
        total += float((chosen[some] * np.log(chosen[some] / share[some])).sum())
    return total / len(scores)


def run_points(folder: Path, looks: Looks) -> list[Point]:
    """The looks of a run at its held-out prompts."""
    distances = [(row["step"], row["kl/reference"]) for row in RunFiles(folder).metrics if "kl/reference" in row]
    gold, words, reward = (
        {step: np.array([row[name] for row in rows]) for step, rows in looks.items()}
        for name in ("gold", "words", "reward")
    )
    slope = _slope(np.stack([*gold.values()]), np.stack([*words.values()]))
    first = min(looks)
    usual = float(words[first].mean())
    points = []
    for step in looks:
        kl = next((value for at, value in distances if at > step), None)
        short = float((words[step] <= usual).mean())
        equal = float(gold[step].mean()) - slope * (float(words[step].mean()) - usual) if short >= FEW_SHORT else None
        points.append(_point(step, kl, reward[step], gold[step], gold[first], words[step], equal))
    return points


def read_looks(folder: Path) -> Looks:
    """The held-out prompts at each evaluation of a run of the laboratory, with reply, reward, gold and words."""
    return {
        int(row["step"]): _look(folder, row["step"]) for row in RunFiles(folder).metrics if "eval/reward/mean" in row
    }


def _look(folder: Path, step: int) -> list[dict[str, Any]]:
    lines = (folder / "samples" / f"evaluation-{step:06d}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = sorted(map(json.loads, lines), key=lambda row: row["task"])
    return [
        {
            "prompt": row["prompt"],
            "reply": row["reply"],
            "reward": row["scores"]["reward"],
            "gold": row["monitors"]["eval_scorer"],
            "words": len(row["reply"].split()),
        }
        for row in rows
    ]


def load_curves(rows: Sequence[dict[str, Any]]) -> list[Curve]:
    """From JSON."""
    return [Curve(**{**row, "points": [Point(**point) for point in row["points"]]}) for row in rows]


def _point(
    at: float, kl: float | None, reward: Array, gold: Array, start: Array, words: Array, equal: float | None
) -> Point:
    error = float((gold - start).std(ddof=1) / np.sqrt(len(gold)))
    return Point(at, kl, float(reward.mean()), float(gold.mean()), error, float(words.mean()), equal)


def _slope(gold: Array, words: Array) -> float:
    """Of gold on words [groups, replies] within groups; 0 where all words are equal."""
    x = words - words.mean(1, keepdims=True)
    y = gold - gold.mean(1, keepdims=True)
    total = float((x * x).sum())
    return float((x * y).sum()) / total if total else 0.0
