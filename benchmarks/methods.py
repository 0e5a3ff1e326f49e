"""All methods on random walks and some in the world, at about as many sampled tokens as PPO takes: three seeds each.

    .venv/bin/python benchmarks/methods.py --parts walks
    .venv/bin/python benchmarks/methods.py --parts graphs --methods ppo grpo rloo
    lmgym demo --output outputs/demo && .venv/bin/python benchmarks/methods.py --parts world --demo outputs/demo
    pip install matplotlib && .venv/bin/python benchmarks/methods.py --parts figure

Writes benchmarks/results/methods.json after every run, goes on where the last launch stopped, and draws
docs/images/methods.svg. `walks`: graph seed 1000, run seeds 0 to 2, 2,000 samples of each last policy; settings were
chosen on seeds 101 to 103. `graphs`: the same on five graphs, or `--graphs`, with `--seeds`. `world`: world_engagement,
5,120 rollouts, run seeds 11 to 13; settings were chosen on seeds below 10. `ppo` is the experiment as it is; the others
differ from it in the flags below.
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
from ppo_world import launch, monitored, paired_gain, with_interval
from random_walks import ROOT, make_start, optimality  # puts the repository's root before this folder
from shared import describe_machine, metrics_of, seconds_of
from shared import launch as launch_file

from lmgym.environments.random_walks import draw_random_walks
from lmgym.statistics import mean
from ppo.algorithms.methods import MethodName, preset

METHODS = get_args(MethodName)
WORLD_METHODS = ("ppo", "rloo", "grpo", "cispo")
WALKS_SEEDS, WORLD_SEEDS = (0, 1, 2), (11, 12, 13)
# the first five from 1000 on whose every start has a way to the goal; in 1001 and 1003 no edge leads to it
GRAPHS = (1000, 1002, 1004, 1005, 1006)
WALKS_FLAGS = ("--learning_rate", "6e-4")
WORLD_FLAGS = ("--ppo_epochs", "4")
WALKS_GROUP, WORLD_GROUP = 10, 8
# epochs and updates, for no more sampled tokens than PPO's 4 and 160 take (cispo's replies grew longer with seeds 0 and
# 1 than with those that chose it); dapo samples groups again; cispo falls behind with several epochs at this rate
WALKS_EPOCHS, OTHERS = {"cispo": (1, 36), "dapo": (4, 80)}, (4, 128)
# of ppo and rloo .1 in the reward; in the loss .3 keeps the policy about as near
WORLD_KL = {"grpo": 0.3, "cispo": 0.3}
WALKS_ROLLOUTS, WORLD_ROLLOUTS = 200, 256  # an iteration's, of the experiments
EVAL_UPDATES = 32
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
    seconds = launch("randomwalks", run, "--model", start, "--seed", seed, "--save_updates", -1, *flags)
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
        launch_file("benchmarks/runners/walks_on_graph.py", start, run, ["--seed", seed, *walks_flags(method)])
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


def engage(method: str, seed: int, folder: Path, demo: Path) -> dict[str, Any]:
    """A run in the world: KL, reward and paired gain of the hidden utility at each evaluation."""
    run = folder / f"world_{method}_{seed}"
    given = ("--model", demo / "policy/model", "--prompts", demo / "world/logs.parquet", "--seed", seed)
    scored = ("--scorers", f"joint={demo / 'scorer/model'}", "--eval_scorer", "world:0")
    flags = ["--save_updates", -1, "--eval_updates", EVAL_UPDATES, *flags_of(method, WORLD_FLAGS, WORLD_GROUP)]
    if method in WORLD_KL:
        flags += ["--init_kl_coef", WORLD_KL[method]]
    seconds = launch("world_engagement", run, *given, *scored, *flags)
    found = iterations(run, WORLD_ROLLOUTS)
    curve: Rows = []
    for row, following in zip(found, [*found[1:], found[-1]], strict=True):
        if "eval/eval_scorer" in row:
            # the policy that was evaluated samples the next iteration, which without a penalty has no KL
            kl = following.get("kl/reference", row["kl/reference"])
            point = {"update": row["step"], "tokens": row["tokens"], "kl": kl}
            gain = paired_gain(run, "eval_scorer", len(curve) + 1)
            curve.append(point | {"reward": row["eval/reward/mean"], **gain})
    return {"seed": seed, "cpu_seconds": seconds, "curve": curve}


def compare(rows: dict[str, Rows], folder: Path) -> Rows:
    """Each run beside the end of PPO with the same seed: at the evaluation of the nearest KL, and at its own end.

    `over_ppo` is the lead of the hidden utility, paired, in its standard deviations before step 1.
    """
    found = []
    for method in [name for name in rows if name != "ppo"]:
        for own, ppo in zip(rows[method], rows["ppo"], strict=False):
            curve, of_ppo = own["curve"], folder / f"world_ppo_{own['seed']}"
            near = min(range(len(curve)), key=lambda i: abs(curve[i]["kl"] - ppo["curve"][-1]["kl"]))
            row: dict[str, Any] = {"method": method, "seed": own["seed"]}
            for name, number in (("nearest_kl", near), ("end", len(curve) - 1)):
                utility = monitored(folder / f"world_{method}_{own['seed']}", "eval_scorer", number + 1)
                lead = utility - monitored(of_ppo, "eval_scorer")
                over = with_interval(lead / monitored(of_ppo, "eval_scorer", 0).std(ddof=1))
                row[name] = {**curve[number], "over_ppo": over}
            found.append(row)
    return found


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
    """A panel for each method, beside PPO: random walks in two rows; in the third the world, and where its runs end."""
    import matplotlib

    matplotlib.rcParams.update({"svg.hashsalt": "lmgym", "font.size": 9, "axes.spines.top": False})
    matplotlib.rcParams["axes.spines.right"] = False
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(3, 4, figsize=(10, 7.2), layout="constrained", sharey="row")
    panels = [("walks", "reward", method) for method in METHODS[1:]]
    panels += [("world", "gain", method) for method in WORLD_METHODS[1:]]
    for panel, (part, key, method) in zip(axes.flat, panels, strict=False):
        for name, colour in (("ppo", GREY), (method, BLUE)):
            before = [{"tokens": 0, "gain": 0.0}] if part == "world" else []
            rows = [{"curve": before + row["curve"]} for row in found[part][name]]
            places, mean, reach = mean_curve(rows, key)
            panel.plot(places, mean, color=colour, lw=1.4, label=name)
            panel.fill_between(places, mean - reach, mean + reach, color=colour, alpha=0.2, lw=0)
        panel.set(xlabel="sampled tokens, thousands", ylim=(0.2, 1.05) if part == "walks" else (0, 1.1))
        panel.legend(frameon=False, loc="lower right")
    for name, marker in zip(WORLD_METHODS, "os^D", strict=True):
        ends = [row["curve"][-1] for row in found["world"][name]]
        places = [[end[key] for end in ends] for key in ("kl", "gain")]
        axes[2, 3].plot(*places, marker, color=GREY if name == "ppo" else BLUE, fillstyle="none", label=name)
    axes[2, 3].set(xlabel="KL at the end, nats per reply", xlim=(0, 2.5))
    axes[2, 3].legend(frameon=False, loc="lower left")
    for panel, label in zip(axes[:, 0], ("random walks: reward", "random walks: reward", "world: gain"), strict=True):
        panel.set_ylabel(label)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Runs the parts that are asked for, and writes what is known after each run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", default=["walks"], choices=("walks", "graphs", "world", "figure"))
    parser.add_argument("--demo", type=Path, help="for the world: what `lmgym demo` made")
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS, help="on random walks")
    parser.add_argument("--graphs", nargs="+", type=int, default=GRAPHS, help="graph seeds of the part graphs")
    parser.add_argument("--seeds", nargs="+", type=int, default=WALKS_SEEDS, help="run seeds of the part graphs")
    parser.add_argument("--folder", type=Path, default=ROOT / "outputs/methods", help="of the runs")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/methods.json")
    arguments = parser.parse_args()
    if "world" in arguments.parts and not arguments.demo:
        parser.error("--parts world needs --demo FOLDER, which `lmgym demo --output FOLDER` makes")
    folder: Path = arguments.folder.resolve()
    found: dict[str, Any] = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
    walks, world = found.setdefault("walks", {}), found.setdefault("world", {})

    def write() -> None:
        arguments.output.write_text(json.dumps(found, indent=1) + "\n")

    def note() -> None:
        found["machine"] = describe_machine()
        write()

    if "walks" in arguments.parts:
        with tempfile.TemporaryDirectory() as temporary:
            start = make_start(temporary)
            run_missing(walks, arguments.methods, WALKS_SEEDS, lambda m, s: walk(m, s, folder, start), note)
    if "graphs" in arguments.parts:
        walk_on_graphs(found.setdefault("five_graphs", {}), arguments, folder, write)
    if "world" in arguments.parts:
        demo = arguments.demo.resolve()
        run_missing(world, WORLD_METHODS, WORLD_SEEDS, lambda m, s: engage(m, s, folder, demo), note)
        found["beside_ppo"] = compare(world, folder)
        note()
    if "figure" in arguments.parts:
        draw(found, ROOT / "docs/images/methods.svg")


if __name__ == "__main__":
    main()
