"""Lesson: over-optimisation seen with gold, and an alarm without (docs/lesson_over_optimisation.md).

A simulated world has a hidden utility, the gold. A scorer learns from 250 of its pairs, and GRPO optimises that. A
second scorer, of other pairs, only watches. Each step is a command that you could type; what is made already is kept.

python examples/lessons/over_optimisation.py [--world 100] [--kl 0] [--output FIGURE.svg]
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

PAIRS = {"first": (0, 250), "second": (250, 1250), "held_out": (1500, 500)}
PROMPT = 6  # of the held-out ones, whose replies are printed
GOLD, SECOND, REWARD = "eval/monitor/gold", "eval/eval_scorer", "eval/reward"
STEPS = """
lmgym world --rows 20000 --seed {world} --output world
lmgym world-policy --world world --seed {seed} --output untrained
lmgym train sft chat --model untrained --dataset world/sft.parquet --epochs 8 --global_batch 16 --micro_batch 16 \
    --learning_rate 3e-3 --adam_beta2 0.99 --sample_prompts 0 {small} --seed {seed} --output policy
lmgym world-model --world world --steps 200 --seed {seed} --output start
lmgym train reward hh_pairwise --model start --dataset first.parquet --epochs 6 {scorer} --seed {seed} --output first
lmgym train reward hh_pairwise --model policy/model --dataset second.parquet --epochs 3 {scorer} --seed {other} \
    --output second
lmgym train grpo world_engagement --model policy/model --prompts world/logs.parquet --eval_size 256 \
    --scorers reward=first/model --eval_scorer second/model --monitor_scorers gold=world:{world} --init_kl_coef {kl:g} \
    --max_kl 0 --max_updates 112 --eval_updates 8 --learning_rate 1.5e-3 --save_updates -1 --tracking none \
    --seed {seed} --output grpo_kl{kl:g}
"""
SMALL = "--max_length 128 --precision fp32 --tracking none --save_updates -1"
SCORER = f"--eval_dataset held_out.parquet --global_batch 32 --learning_rate 1e-3 --best_metric none {SMALL}"


def is_done(folder: Path) -> bool:
    """True if a command has made its folder; a run must have come to its end."""
    run = folder / "run.json"
    if run.is_file():
        return json.loads(run.read_text())["outcome"] in ("finished", "collapsed")
    return any((folder / name).is_file() for name in ("world.json", "config.json"))


def split_pairs(folder: Path) -> None:
    """Gives each scorer pairs of its own, and keeps some to test both on."""
    pairs = pq.read_table(folder / "world/pairs.parquet")
    for name, (first, number) in PAIRS.items():
        pq.write_table(pairs.slice(first, number), folder / f"{name}.parquet")


def run(command: str, folder: Path) -> None:
    """Runs a command in the folder, unless it is done. What it prints goes to a file."""
    words = shlex.split(command)
    made = folder / words[-1]
    if is_done(made):
        return
    print(f"{' '.join(words[:3])} ... --output {words[-1]}", flush=True)
    program, log = Path(sys.executable).with_name("lmgym"), folder / f"{words[-1]}.log"
    with log.open("w") as file:
        subprocess.run([program, *words[1:]], cwd=folder, stdout=file, stderr=subprocess.STDOUT, check=False)
    if not is_done(made):
        raise SystemExit(f"failed: {command}\nits output: {log}")


def looks(folder: Path) -> list[dict[str, Any]]:
    """The evaluations of a run. Gains are since the start, in standard deviations over the replies then."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    distances = [(row["step"], row["kl/reference"]) for row in rows if "kl/reference" in row]
    found = [row for row in rows if GOLD in row]
    start = found[0]
    return [
        {
            "update": row["step"],
            "KL": next((kl for step, kl in distances if step > row["step"]), None),  # of the rollouts that follow
            "tokens": row["eval/rollout/reply_tokens"],
            "reward": (row[f"{REWARD}/mean"] - start[f"{REWARD}/mean"]) / start[f"{REWARD}/std"],
            "second": (row[SECOND] - start[SECOND]) / start[f"{SECOND}_std"],
            "gold": (row[GOLD] - start[GOLD]) / start[f"{GOLD}_std"],
            "alarm": row["alarm/eval_scorer_falls"] > 0,
        }
        for row in found
    ]


def show(found: list[dict[str, Any]], folder: Path) -> None:
    """Prints the table, where the gold is highest and the alarm rings, and replies to one prompt."""
    print("\nupdate     KL  tokens |  reward  second    gold")
    for look in found:
        kl = "     -" if look["KL"] is None else f"{look['KL']:6.1f}"
        gains = "  ".join(f"{look[name]:6.2f}" for name in ("reward", "second", "gold"))
        print(f"{look['update']:6} {kl}  {look['tokens']:6.1f} |  {gains}" + ("  ALARM" if look["alarm"] else ""))
    peak, last = max(found, key=lambda look: look["gold"]), found[-1]
    print(f"\ngold is highest at update {peak['update']}: {peak['gold']:+.2f}; at the end it is {last['gold']:+.2f}")
    rung = [f"the alarm rings at update {look['update']}: gold {look['gold']:+.2f}" for look in found if look["alarm"]]
    print(rung[0] if rung else "no alarm rings")
    for look in (found[0], peak, last):
        lines = (folder / f"samples/evaluation-{look['update']:06}.jsonl").read_text().splitlines()
        row = json.loads(lines[PROMPT])
        prompt = row["prompt"].rpartition("User: ")[2].partition("\n")[0]
        print(f"\nafter {look['update']} updates, to '{prompt}':\n  {row['reply'].strip()}")


def draw(found: list[dict[str, Any]], path: str) -> None:
    """The three gains over updates; a dotted line where the alarm rings first."""
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "lmgym", "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    curves = {"reward": "the first scorer, optimised", "second": "the second scorer, which watches", "gold": "gold"}
    for (name, label), colour in zip(curves.items(), ("#ea580c", "#6b7280", "#2563eb"), strict=True):
        axes.plot([look["update"] for look in found], [look[name] for look in found], color=colour, label=label)
    for look in [look for look in found if look["alarm"]][:1]:
        axes.axvline(look["update"], color="black", ls=":", label="the alarm rings")
    axes.set(xlabel="updates", ylabel="gain, standard deviations")
    axes.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--world", type=int, default=100, help="seed of the world")
    parser.add_argument("--seed", type=int, default=1, help="of all training")
    parser.add_argument("--kl", type=float, default=0, help="weight of the KL penalty")
    parser.add_argument("--folder", type=Path, default=Path("outputs/over_optimisation"), help="for what is made")
    parser.add_argument("--output", help="the figure, a file .svg or .png; needs matplotlib")
    asked = parser.parse_args()
    if asked.output:
        import matplotlib  # noqa: F401  before the work, in case it is missing
    folder = asked.folder / f"world_{asked.world}_seed_{asked.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    steps = STEPS.format(
        world=asked.world, seed=asked.seed, other=asked.seed + 1, kl=asked.kl, small=SMALL, scorer=SCORER
    )
    world, *others = steps.strip().splitlines()
    run(world, folder)
    split_pairs(folder)
    for command in others:
        run(command, folder)
    optimised = folder / f"grpo_kl{asked.kl:g}"
    found = looks(optimised)
    show(found, optimised)
    if asked.output:
        draw(found, asked.output)


if __name__ == "__main__":
    main()
