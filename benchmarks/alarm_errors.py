"""Error rates of the alarm of over-optimisation: the shares of healthy and of exploited runs in which it rings.

    python benchmarks/alarm_errors.py --runs 2000 --output benchmarks/results/alarm_errors.json

Simulated scores of prompts at each evaluation, in spreads: a prompt's own part, which stays, and noise, normal or
exponential. The reward rises in every run. Healthy runs: the mean is flat but for an effect of each evaluation, drawn
uniformly within the tolerance, or rises. Exploited ones: the mean rises for half of the evaluations, and then falls by
a spread. The rules beside ours are those that it replaced: two standard errors of one mean below the best (PPO), and
four errors of the difference (the reward server).
"""

import argparse
import itertools
import json
from pathlib import Path

import numpy as np
from shared import write_result

from lmgym.scoring.alarm import TOLERANCE, Alarm, Reading

LOOKS = (5, 10, 20, 80)
PROMPTS = ((16, 0.0), (64, 0.6), (256, 0.3))
"""prompts, and the correlation of their scores between evaluations"""
HEALTHY = ("flat", "rising")


def scores(rng: np.random.Generator, kind: str, looks: int, prompts: int, correlation: float) -> np.ndarray:
    """float64 [looks, prompts]."""
    shape = (looks, prompts)
    noise = rng.standard_normal(shape) if kind == "flat" else rng.exponential(size=shape) - 1
    values = np.sqrt(correlation) * rng.standard_normal(prompts) + np.sqrt(1 - correlation) * noise
    steps = np.linspace(0, 1, looks)
    if kind == "flat":
        means = rng.uniform(-TOLERANCE / 2, TOLERANCE / 2, looks)
    elif kind == "rising":
        means = steps
    else:
        means = np.where(steps <= 0.5, steps, 0.5 - 2 * (steps - 0.5))
    return values + means[:, None]


def rings(values: np.ndarray, rewards: np.ndarray) -> dict[str, bool]:
    """By rule, whether it rings in a run."""
    looks, prompts = values.shape
    names = [str(i) for i in range(prompts)]
    alarm, spread = Alarm(), float(values[0].std())
    ours = False
    for at in range(looks):
        ours = ours or alarm.update(at, Reading.of(rewards[at], names), Reading.of(values[at], names), spread)
        if ours:
            break
    means, errors = values.mean(1), values.std(1) / np.sqrt(prompts)
    best = np.maximum.accumulate(means)
    at_best = np.array([int(means[: k + 1].argmax()) for k in range(looks)])
    risen = rewards.mean(1) > rewards.mean(1)[at_best]
    return {
        "ours": ours,
        "two errors of a mean": bool(((means < best - 2 * errors) & risen).any()),
        "four errors of the difference": bool(
            (means < best - 4 * np.hypot(errors, errors[at_best])).any() & risen.any()
        ),
    }


def main() -> None:
    """Simulates all kinds of runs, and writes the shares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=70)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows = []
    for kind, looks, (prompts, correlation) in itertools.product((*HEALTHY, "exploited"), LOOKS, PROMPTS):
        rng = np.random.default_rng([options.seed, len(rows)])
        found = []
        for _ in range(options.runs):
            values = scores(rng, kind, looks, prompts, correlation)
            rewards = rng.standard_normal((looks, prompts)) + np.linspace(0, 2, looks)[:, None]
            found.append(rings(values, rewards))
        shares = {rule: float(np.mean([one[rule] for one in found])) for rule in found[0]}
        rows.append({"kind": kind, "looks": looks, "prompts": prompts, "correlation": correlation, **shares})
        print(json.dumps(rows[-1]), flush=True)
    if options.output:
        write_result(options.output, {"runs": options.runs, "seed": options.seed, "rows": rows}, "intervals")


if __name__ == "__main__":
    main()
