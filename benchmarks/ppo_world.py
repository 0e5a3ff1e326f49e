"""PPO on the world's policy, compared with the best of 4: against a scorer, without a KL penalty, in conversations.

    lmgym demo --output outputs/demo          # world 0, its policy, its scorer
    .venv/bin/python benchmarks/ppo_world.py --demo outputs/demo --held_out PATH

Writes benchmarks/results/ppo_world.json. Four parts, each begun where the last launch stopped: `engagement`
(world_engagement, seeds 11 to 13; the hidden utility and a held-out scorer on 256 held-out prompts, paired: the same
prompts and noise before step 1 and after the last), `app` (the policy, its best of 4, each PPO policy and the best of 4
of the first: the same users), `hacking` (the KL coefficient at 0, seeds 11 to 15, four times as many updates: reward,
hidden utility and alarm over the root of the KL) and `conversation` (world_conversation, seeds 11 to 13, and the app).
Seeds and sizes were fixed before any of them was run; settings were chosen on seeds below 10.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from shared import ROOT, describe_machine, metrics_of

from lmgym.statistics import mean

SEEDS, HACKING_SEEDS = (11, 12, 13), (11, 12, 13, 14, 15)
HACKING_UPDATES = 4
USERS, BEST_OF = 150, 4


def launch(experiment: str, output: Path, *flags: object) -> float:
    """Runs an experiment on one rank and thread unless its folder says finished; CPU seconds."""
    if (output / "run.json").exists() and json.loads((output / "run.json").read_text())["outcome"] == "finished":
        return 0.0
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [sys.executable, f"ppo/experiments/{experiment}.py", "--output", output, "--tracking", "none", *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(list(map(str, words)), cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 68):  # 68: collapsed, which is what hacking may come to
        raise SystemExit(f"{experiment} ended with {done.returncode}: {done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def monitored(folder: Path, name: str, number: int = -1) -> np.ndarray:
    """A monitor's scores of the replies to the held-out prompts [n], at an evaluation; 0 is the one before step 1."""
    file = sorted((folder / "samples").glob("evaluation-*.jsonl"))[number]
    return np.array([json.loads(line)["monitors"][name] for line in file.read_text().splitlines()])


def with_interval(changes: np.ndarray) -> dict[str, float | None]:
    """Mean of paired changes, with a 95% interval."""
    found = mean(changes)
    return {"gain": found.value, "low": found.low, "high": found.high}


def paired_gain(folder: Path, name: str, number: int = -1) -> dict[str, float]:
    """A monitor's rise on the held-out prompts up to an evaluation, in its standard deviations before step 1."""
    before = monitored(folder, name, 0)
    return with_interval((monitored(folder, name, number) - before) / before.std(ddof=1))


def engagement(folder: Path, common: Sequence[object], held_out: Path | None) -> list[dict[str, Any]]:
    """A row a seed."""
    rows = []
    for seed in SEEDS:
        run = folder / f"engagement_{seed}"
        watched = ("--monitor_scorers", f"held_out={held_out}") if held_out else ()
        seconds = launch("world_engagement", run, *common, *watched, "--seed", seed, "--save_updates", -1)
        last = metrics_of(run)[-1]
        row = {"seed": seed, "kl": last["kl/reference"], "reward": last["eval/reward/mean"], "cpu_seconds": seconds}
        row["gold"] = paired_gain(run, "eval_scorer")
        if held_out:
            row["held_out"] = paired_gain(run, "held_out")
        rows.append(row)
        print(row, flush=True)
    return rows


def hacking(folder: Path, common: Sequence[object], updates: int) -> list[dict[str, Any]]:
    """Proxy, gold and alarm along the way, a row a seed."""
    rows = []
    for seed in HACKING_SEEDS:
        run = folder / f"hacking_{seed}"
        free = ("--init_kl_coef", 0, "--max_kl", 0, "--max_updates", updates, "--eval_updates", updates // 10)
        launch("world_engagement", run, *common, *free, "--seed", seed, "--save_updates", -1)
        seen = [line for line in metrics_of(run) if "eval/eval_scorer" in line]
        curve = [
            {
                "update": line["step"],
                "sqrt_kl": line.get("kl/sqrt_reference"),
                "reward": line["eval/reward/mean"],
                "gold": line["eval/eval_scorer"],
                "alarm": line.get("alarm/eval_scorer_falls", 0.0),
            }
            for line in seen
        ]
        rows.append({"seed": seed, "curve": curve})
        print(
            seed,
            [(round(c["sqrt_kl"] or 0, 2), round(c["reward"], 2), round(c["gold"], 3), c["alarm"]) for c in curve],
        )
    return rows


def conversation(folder: Path, common: Sequence[object]) -> list[dict[str, Any]]:
    """A row a seed."""
    rows = []
    for seed in SEEDS:
        run = folder / f"conversation_{seed}"
        seconds = launch("world_conversation", run, *common, "--seed", seed, "--save_updates", -1)
        found = metrics_of(run)
        first, last = (next(x for x in order if "eval/episode/length" in x) for order in (found, found[::-1]))
        keys = ("eval/episode/length", "eval/episode/utility")
        rows.append({"seed": seed, "before": {k: first[k] for k in keys}, "after": {k: last[k] for k in keys}})
        rows[-1] |= {"kl": last.get("kl/reference"), "cpu_seconds": seconds}
        print(rows[-1], flush=True)
    return rows


def in_the_app(folder: Path, policies: Sequence[str], users: int) -> dict[str, Any]:
    """The same users meet every policy."""
    if not (folder / "ab.json").exists():
        words = [
            "ab",
            *policies,
            "--users",
            str(users),
            "--paired",
            "--seed",
            "0",
            "--world_seed",
            "0",
            "--output",
            str(folder),
        ]
        lmgym = str(Path(sys.executable).parent / "lmgym")
        subprocess.run([lmgym, *words], cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
    return json.loads((folder / "ab.json").read_text())


def main() -> None:
    """Runs the parts that are asked for, and writes what is known after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--demo", type=Path, required=True, help="what `lmgym demo` made")
    parser.add_argument("--held_out", type=Path, help="another scorer's folder")
    parser.add_argument("--folder", type=Path, default=ROOT / "outputs/ppo_world", help="of the runs")
    parser.add_argument("--parts", nargs="+", default=["engagement", "app", "hacking", "conversation"])
    parser.add_argument("--users", type=int, default=USERS)
    parser.add_argument("--hacking_updates", type=int, default=HACKING_UPDATES * 320)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/ppo_world.json")
    arguments = parser.parse_args()
    folder, demo = arguments.folder.resolve(), arguments.demo.resolve()
    policy, scorer = demo / "policy/model", demo / "scorer/model"
    model = ("--model", policy)
    scored = (
        *model,
        "--prompts",
        demo / "world/logs.parquet",
        "--scorers",
        f"joint={scorer}",
        "--eval_scorer",
        "world:0",
    )
    found: dict[str, Any] = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}

    def note(part: str, value: Any) -> None:
        found.update({"machine": describe_machine(), part: value})
        text = json.dumps(found, indent=1).replace(f"{folder}/", "").replace(f"{demo}/", "demo/")
        arguments.output.write_text(text + "\n")

    if "engagement" in arguments.parts:
        note("engagement", engagement(folder, scored, arguments.held_out and arguments.held_out.resolve()))
    if "app" in arguments.parts:
        trained = [str(folder / f"engagement_{seed}/model") for seed in SEEDS]
        arms = [str(policy), f"{policy}@{scorer}:{BEST_OF}", *trained, f"{trained[0]}@{scorer}:{BEST_OF}"]
        note("app", in_the_app(folder / "app", arms, arguments.users))
    if "conversation" in arguments.parts:
        rows = conversation(folder, model)
        arms = [str(policy), *(str(folder / f"conversation_{seed}/model") for seed in SEEDS)]
        note("conversation", {"runs": rows, "app": in_the_app(folder / "app_conversation", arms, arguments.users)})
    if "hacking" in arguments.parts:
        note("hacking", hacking(folder, scored, arguments.hacking_updates))


if __name__ == "__main__":
    main()
