"""All methods on random walks, at about as many sampled tokens as PPO takes: three seeds each.

    .venv/bin/python benchmarks/methods.py --parts walks
    .venv/bin/python benchmarks/methods.py --parts graphs --methods ppo grpo rloo
    pip install matplotlib && .venv/bin/python benchmarks/methods.py --parts figure

Writes benchmarks/results/methods.json after every run, goes on where the last launch stopped, and draws
docs/images/methods.svg. `walks`: graph seed 1000, run seeds 0 to 2, 2,000 samples of each last policy; settings were
chosen on seeds 101 to 103. `graphs`: the same on five graphs, or `--graphs`, with `--seeds`. `ppo` is the experiment as
it is; the others differ from it in the flags below.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np
from random_walks import ROOT, make_start, optimality  # puts the repository's root before this folder
from shared import describe_machine, launch, metrics_of, seconds_of, write_result

from lmgym.environments.random_walks import draw_random_walks
from lmgym.statistics import mean
from ppo.algorithms.methods import MethodName, preset

METHODS = get_args(MethodName)
SEEDS = (0, 1, 2)
# the first five from 1000 on whose every start has a way to the goal; in 1001 and 1003 no edge leads to it
GRAPHS = (1000, 1002, 1004, 1005, 1006)
WALKS_FLAGS = ("--learning_rate", "6e-4")
WALKS_GROUP = 10
# epochs and updates, for no more sampled tokens than PPO's 4 and 160 take (cispo's replies grew longer with seeds 0 and
# 1 than with those that chose it); dapo samples groups again; cispo falls behind with several epochs at this rate
WALKS_EPOCHS, OTHERS = {"cispo": (1, 36), "dapo": (4, 80)}, (4, 128)
WALKS_ROLLOUTS = 200  # an iteration's, of the experiment
STUDENT = 4.303  # 97.5% quantile of Student's t for three seeds
GREY, BLUE = "#6b7280", "#2563eb"
Rows = list[dict[str, Any]]


def flags_of(method: str, shared: Sequence[str], group: int) -> list[object]:
    """Flags in which a method differs from the experiment as it is."""
    if method == "ppo":
        return []
    groups = ("--num_generations", group) if preset(method).compares else ()  # type: ignore[arg-type]
    return ["--method", method, *groups, *shared]


def iterations(folder: Path, rollouts: int) -> Rows:
    """Metrics of a run's iterations, with `tokens`: all that had been sampled at their end.

    Groups that were played again count with the mean length of those that were kept.
    """
    found = [line for line in metrics_of(folder) if "reward/mean" in line]
    of_each = [row["rollout/reply_tokens"] * rollouts * (1 + row.get("groups/refilled", 0.0)) for row in found]
    return [{**row, "tokens": int(total)} for row, total in zip(found, np.cumsum(of_each), strict=True)]


def walks_flags(method: str) -> list[object]:
    """Flags of a method on random walks."""
    if method == "ppo":
        return []
    epochs, updates = WALKS_EPOCHS.get(method, OTHERS)
    return [*flags_of(method, WALKS_FLAGS, WALKS_GROUP), "--ppo_epochs", epochs, "--max_updates", updates]


def walk(method: str, seed: int, folder: Path, start: Path) -> dict[str, Any]:
    """A run on random walks: what its policy is worth, and each iteration's reward over the tokens sampled before."""
    run, flags = folder / f"walks_{method}_{seed}", walks_flags(method)
    seconds = launch("ppo/experiments/randomwalks.py", start, run, ["--seed", seed, *flags])
    found = iterations(run, WALKS_ROLLOUTS)
    before = [0, *(row["tokens"] for row in found)]
    curve = [{"tokens": tokens, "reward": row["reward/mean"]} for tokens, row in zip(before, found, strict=False)]
    row = {"seed": seed, **optimality(run / "model"), "tokens": before[-1], "updates": found[-1]["step"]}
    return row | {"cpu_seconds": seconds, "curve": curve}


def walk_on(graph: int, method: str, seed: int, start: Path) -> dict[str, Any]:
    """A run on the random walks of a graph: what its policy is worth."""
    os.environ["GRAPH"] = str(graph)
    with tempfile.TemporaryDirectory() as temporary:
        run = Path(temporary) / "run"
        launch("benchmarks/runners/walks_on_graph.py", start, run, ["--seed", seed, *walks_flags(method)])
        tokens = iterations(run, WALKS_ROLLOUTS)[-1]["tokens"]
        worth = {**optimality(run / "model", graph), "tokens": tokens, "cpu_seconds": seconds_of(run)}
    return {"graph": graph, "seed": seed} | worth


def walk_on_graphs(found: dict[str, Any], arguments: argparse.Namespace, folder: Path, write: Callable) -> None:
    """The runs on each graph that have no row yet, seed after seed; then each method's mean over graphs."""
    runs = found.setdefault("runs", {})
    for graph in arguments.graphs:
        start, known = make_start(folder / "starts", graph), draw_random_walks(graph)
        if str(graph) not in found.setdefault("graphs", {}):
            walks = float(known.optimality(known.walks).mean())
            found["graphs"][str(graph)] = {"walks": walks, "start": optimality(start, graph)}
    for seed, method, graph in product(arguments.seeds, arguments.methods, arguments.graphs):
        rows = runs.setdefault(method, [])
        if not any((row["graph"], row["seed"]) == (graph, seed) for row in rows):
            rows.append(walk_on(graph, method, seed, make_start(folder / "starts", graph)))
            print(method, rows[-1], flush=True)
            found["machine"] = describe_machine()
            write()
    for method, rows in runs.items():
        for key in ("sampled", "greedy"):
            over = mean([row[key] for row in rows], [row["graph"] for row in rows], (0, 1))
            found.setdefault("means", {}).setdefault(method, {}).update(over.named(key))
            print(f"{method}, {over.units} graphs, {len(rows)} runs, {key}: {over:.3f}", flush=True)
    write()


def run_missing(rows: dict[str, Rows], methods: Sequence[str], seeds: Sequence[int], run: Callable, note: Callable):
    """Runs each method with the seeds that have no row yet, and notes each run's row."""
    for method in methods:
        known = rows.setdefault(method, [])
        for seed in seeds[len(known) :]:
            known.append(run(method, seed))
            print(method, {name: value for name, value in known[-1].items() if name != "curve"}, flush=True)
            print(known[-1]["curve"][-1], flush=True)
            note()


def mean_curve(rows: Rows, key: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Thousands of tokens, the mean over seeds there, and half of its 95% interval (Student's t)."""
    curves = [np.array([[point["tokens"], point[key]] for point in row["curve"]]) for row in rows]
    places = np.linspace(max(curve[0, 0] for curve in curves), min(curve[-1, 0] for curve in curves), 25)
    values = np.stack([np.interp(places, *curve.T) for curve in curves])
    return places / 1000, values.mean(0), STUDENT * values.std(0, ddof=1) / len(rows) ** 0.5


def draw(found: dict[str, Any], path: Path) -> None:
    """A panel for each method, beside PPO."""
    import matplotlib

    matplotlib.rcParams.update({"svg.hashsalt": "lmgym", "font.size": 9, "axes.spines.top": False})
    matplotlib.rcParams["axes.spines.right"] = False
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 4, figsize=(10, 4.8), layout="constrained", sharey="row")
    for panel, method in zip(axes.flat, METHODS[1:], strict=False):
        for name, colour in (("ppo", GREY), (method, BLUE)):
            places, mean, reach = mean_curve(found["walks"][name], "reward")
            panel.plot(places, mean, color=colour, lw=1.4, label=name)
            panel.fill_between(places, mean - reach, mean + reach, color=colour, alpha=0.2, lw=0)
        panel.set(xlabel="sampled tokens, thousands", ylim=(0.2, 1.05))
        panel.legend(frameon=False, loc="lower right")
    for panel in axes[:, 0]:
        panel.set_ylabel("reward")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Runs the parts that are asked for, and writes what is known after each run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", default=["walks"], choices=("walks", "graphs", "figure"))
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS, help="on random walks")
    parser.add_argument("--graphs", nargs="+", type=int, default=GRAPHS, help="graph seeds of the part graphs")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS, help="run seeds of the part graphs")
    parser.add_argument("--folder", type=Path, default=ROOT / "outputs/methods", help="of the runs")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/methods.json")
    arguments = parser.parse_args()
    folder: Path = arguments.folder.resolve()
    found: dict[str, Any] = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
    walks = found.setdefault("walks", {})

    def write() -> None:
        write_result(arguments.output, found, "method", "sampler")

    def note() -> None:
        found["machine"] = describe_machine()
        write()

    if "walks" in arguments.parts:
        with tempfile.TemporaryDirectory() as temporary:
            start = make_start(temporary)
            run_missing(walks, arguments.methods, SEEDS, lambda m, s: walk(m, s, folder, start), note)
    if "graphs" in arguments.parts:
        walk_on_graphs(found.setdefault("five_graphs", {}), arguments, folder, write)
    if "figure" in arguments.parts:
        draw(found, ROOT / "docs/images/methods.svg")


if __name__ == "__main__":
    main()
