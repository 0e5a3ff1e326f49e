"""The results behind docs/over_optimisation.md, from labs that `lmgym lab run` has made.

    lmgym lab run figure --jobs 2 --output outputs/lab/figure     # goes on where it was stopped
    lmgym lab run unseen --jobs 2 --output outputs/lab/unseen     # a world chosen after all others were run
    .venv/bin/python benchmarks/over_optimisation.py --labs outputs/lab
    .venv/bin/python benchmarks/pages.py                          # writes the page's tables
    python docs/images/make_over_optimisation.py                  # draws them; needs matplotlib

Writes benchmarks/results/over_optimisation.json: every curve with all seeds, CPU seconds by kind of step,
thresholds of alarms, and how many points of the unseen world lie in the prediction intervals of the six worlds: at each
distance, mean +- t(.975) s sqrt(1 + 1/6) over worlds, for each method and scorer.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from lab_tables import curves_of
from scipy import stats
from shared import ROOT, describe_machine, origin

from lmgym.apps.lab.alarms import RULES
from lmgym.apps.lab.budget import least_loss
from lmgym.apps.lab.forms import on_grid
from lmgym.apps.lab.record import open_lab, plan_of
from lmgym.apps.lab.steps import folder_of
from lmgym.apps.lab.trial import counts, judge
from lmgym.apps.lab.watching import watch

RESTS_ON = ("world", "lab", "rows", "sampler", "method", "intervals")
METHODS = ("ppo", "grpo")


def cpu_seconds(steps: Mapping[str, dict[str, Any]]) -> dict[str, float]:
    """Of a lab's steps, by kind: what is behind the world in their names, without names of runs."""
    found: dict[str, float] = {}
    for name, step in steps.items():
        what = name.partition(": ")[2] or "world"
        for method in METHODS:
            what = method if f"_{method}_" in what and not what.startswith("watch") else what
        for kind in ("proxy", "pool by", "watch"):
            what = kind if what.startswith(kind) else what
        found[what] = round(found.get(what, 0.0) + step["cpu_seconds"], 1)
    return found | {"all": round(sum(found.values()), 1)}


def prediction(known: dict[str, Any], unseen: dict[str, Any]) -> list[dict[str, Any]]:
    """A row a method and proxy: the share of the unseen world's points in the prediction interval of the others."""
    others, rows = curves_of(known), []
    for (method, proxy, weight), [curve] in curves_of(unseen).items():
        own = others[method, proxy, weight]
        _, gains = on_grid([*own, curve])
        n = len(own)
        reach = stats.t.ppf(0.975, n - 1) * gains[:n].std(0, ddof=1) * np.sqrt(1 + 1 / n)
        inside = float((np.abs(gains[n] - gains[:n].mean(0)) <= reach)[1:].mean())
        rows.append({"method": method, "proxy": proxy, "world": curve.world, "inside": round(inside, 3)})
    return rows


def thresholds(folder: Path) -> dict[str, Any]:
    """The 95th percentile of each alarm's largest statistic in a lab's sound runs, of alarms that need no scorer."""
    plan = plan_of(folder)
    judged = [
        judge(run.name, f"{run.world}/{run.proxy}", watch(folder / folder_of(run.world) / "runs" / run.name, {}))
        for run in plan.runs
        if not run.samples
    ]
    sound = [run for run in judged if run.outcome == "sound"]
    own = [rule.name for rule in RULES if not rule.watcher]
    return {"outcomes": counts(judged)} | {
        name: float(np.quantile([run.largest[name] for run in sound], 0.95)) for name in own
    }


def constant(budgets: list[dict[str, Any]]) -> dict[str, Any]:
    """The N whose best loses least over all scorers and worlds of a lab, and its KL in nats a reply."""
    gold = np.array([case["gold"] for case in budgets])
    place = least_loss(gold)
    return {"n": budgets[0]["sizes"][place], "kl": float(np.mean([case["kl"][place] for case in budgets]))}


def rounded(value: Any) -> Any:
    """Numbers with 4 digits."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main() -> None:
    """Reads what labs there are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labs", type=Path, default=ROOT / "outputs/lab")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/over_optimisation.json")
    arguments = parser.parse_args()
    labs = {name: arguments.labs / name for name in ("figure", "unseen")}
    found: dict[str, Any] = {"machine": describe_machine(), "cpu_seconds": {}}
    read = {
        name: json.loads((path / "figures.json").read_text())
        for name, path in labs.items()
        if (path / "figures.json").is_file()
    }
    for name in read:
        found["cpu_seconds"][name] = cpu_seconds(open_lab(labs[name]).steps)
    figure = read["figure"]
    found["thresholds"] = thresholds(labs["figure"])
    found |= {"lost": figure["lost"], "constant": constant(figure["budgets"])}
    if "unseen" in read:
        found["prediction"] = prediction(figure, read["unseen"])
    found |= {"curves": figure["curves"], "budgets": figure["budgets"]}
    arguments.output.write_text(json.dumps(origin(*RESTS_ON) | rounded(found)) + "\n")


if __name__ == "__main__":
    main()
