"""Keeps the figures of README's first block and of `make demo`, once both were run as printed there.

    .venv/bin/python benchmarks/readme_runs.py outputs

Reads the runs' folders and trains nothing; writes results/first_steps.json and results/demo.json.
"""

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

from shared import RESULTS, metrics_of, origin

RESTS_ON = ("rows", "sampler", "method", "intervals")
OF_RL = {
    "reward": "eval/reward/mean",
    "hidden_utility": "eval/eval_scorer",
    "tokens": "eval/rollout/reply_tokens",
    "openings": "eval/diversity/openings",
    "distinct_2": "eval/diversity/distinct_2",
}


def run_of(folder: Path) -> dict[str, Any]:
    """The command of a finished run, its commit and its cost. Raises ValueError where it has not finished."""
    run = json.loads((folder / "run.json").read_text())
    if run["outcome"] != "finished":
        raise ValueError(f"{folder} is {run['outcome']}; needed: a finished run (type its command again)")
    words = [Path(word).name if word.startswith("/") else word for word in shlex.split(run["command"])]
    return {
        "command": shlex.join(words), "commit": run["git"]["commit"], "seed": run["seed"],
        "cpu_seconds": run["cpu_seconds"], "cores": run["cores"], "gpus": run["gpus"],
    }  # fmt: skip


def ends(before: dict[str, float], after: dict[str, float], key: str) -> dict[str, float]:
    """A figure before and after, with the ends of the interval after where there is one."""
    found = {"before": before[key], "after": after[key]}
    return found | {end: after[f"{key}_{end}"] for end in ("low", "high") if f"{key}_{end}" in after}


def evaluated(folder: Path, key: str) -> dict[str, Any]:
    """A figure of SFT or of a scorer on held-out rows, and of a scorer how often the longer reply is the better one."""
    found = json.loads((folder / "evaluation.json").read_text())
    length = {name: found["metrics"][name] for name in ("length_accuracy",) if name in found["metrics"]}
    return {key: ends(found["before"], found["metrics"], key), **length, **run_of(folder)}


def optimised(folder: Path) -> dict[str, Any]:
    """Figures on held-out prompts before step 1 and at the end of RL, and the last KL."""
    lines = metrics_of(folder)
    evaluations = [line for line in lines if "eval/reward/mean" in line]
    before, after = evaluations[0], evaluations[-1]
    found: dict[str, Any] = {name: ends(before, after, key) for name, key in OF_RL.items() if key in after}
    kl = [line["kl/reference"] for line in lines if "kl/reference" in line][-1]
    return {**found, "kl": kl, **run_of(folder)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("outputs", type=Path, help="the folder that README's commands write to")
    outputs = parser.parse_args().outputs
    first = {
        **origin(*RESTS_ON), "command": "the first block of README.md",
        "sft": evaluated(outputs / "sft", "perplexity"), "scorer": evaluated(outputs / "scorer", "accuracy"),
        "policy": optimised(outputs / "policy"),
    }  # fmt: skip
    (RESULTS / "first_steps.json").write_text(json.dumps(first, indent=1) + "\n")
    test = outputs / "demo/ab/ab.json"
    demo = {**origin("world", *RESTS_ON), "command": "make demo", "ppo": optimised(outputs / "demo/ppo")}
    record = json.loads((test if test.is_file() else RESULTS / "demo.json").read_text())
    demo |= {name: record[name] for name in ("design", "policies", "comparisons")}
    demo["policies"] = [{**arm, "policy": short(arm["policy"])} for arm in demo["policies"]]
    demo["comparisons"] = [{**one, "a": short(one["a"]), "b": short(one["b"])} for one in demo["comparisons"]]
    (RESULTS / "demo.json").write_text(json.dumps(demo, indent=1) + "\n")


def short(policy: str) -> str:
    """'ppo/model' of 'outputs/demo/ppo/model'."""
    return policy.replace("outputs/demo/", "")


if __name__ == "__main__":
    main()
