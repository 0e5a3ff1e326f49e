"""Scorers trained on users' traces, evaluated by the world's hidden utility, on five worlds.

    .venv/bin/python benchmarks/behaviour.py --draw 5      # writes benchmarks/results/behaviour.json

For each world: its files, a small model pretrained on its chats without labels, then every experiment as a user runs
it, on one core, two worlds at a time. All are scored on the same replies to users whom no log shows. The seeds of the
worlds are drawn from the hash of the commit at hand, so that nobody chose them; the settings were chosen on worlds
0 to 4, which are not reported. Each world that is done is written down; the same command goes on with the others.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from shared import ROOT, describe_machine, write_result

from lmgym.apps.world.baselines import baselines

EXPERIMENTS = ROOT / "reward_models/experiments"
JOINT = "convo_joint"
ROWS = 100_000
COMMON = {"precision": "fp32", "adam_beta2": "0.99", "micro_batch": "64", "global_batch": "64", "tracking": "none"}
COMMON |= {"learning_rate": "3e-3", "weight_decay": "0.3", "freeze_embeddings": "true"}
COMMON |= {"epochs": "6", "log_updates": "100", "eval_updates": "1000000", "save_updates": "-1"}  # judged at the end
LOGS, RANKED = COMMON | {"eval_size": "3000"}, COMMON | {"eval_size": "500"}
RUNS = {
    "retry_accept": ("retry_accept", "logs", LOGS),
    "messages_first_days": ("messages_first_days", "logs", LOGS),
    "responds_180s": ("responds_180s", "logs", LOGS),
    JOINT: (JOINT, "logs", LOGS),
    "shuffled labels": (JOINT, "shuffled", LOGS),
    "pairs": ("hh_pairwise", "pairs", RANKED),
    "kwise_ranking": ("kwise_ranking", "kwise", RANKED),
}


def draw_seeds(n: int) -> tuple[str, list[int]]:
    """The commit at hand, and n seeds out of its hash. Raises RuntimeError where the code differs from the commit."""
    if subprocess.check_output(["git", "status", "--porcelain", "lmgym", "reward_models"], cwd=ROOT):
        raise RuntimeError(
            "lmgym/ or reward_models/ differs from the last commit; commit first: seeds come from its hash"
        )
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()
    return commit, [int(hashlib.sha256(f"{commit} {i}".encode()).hexdigest()[:6], 16) for i in range(n)]


def shuffle_labels(folder: Path, seed: int) -> None:
    """`shuffled.parquet`: the logs with the labels of each user dealt out among that user's rows."""
    logs = pq.read_table(folder / "logs.parquet")
    users = logs["user_id"].to_numpy()
    rng = np.random.default_rng(seed)
    places, dealt = np.argsort(users, kind="stable"), np.lexsort((rng.random(len(users)), users))
    source = np.empty(len(users), dtype=np.int64)
    source[places] = dealt
    labels = logs.column_names[logs.column_names.index("accepted") :]
    mixed = logs.select(labels).take(pa.array(source))
    for name in labels:
        logs = logs.set_column(logs.column_names.index(name), name, mixed[name])
    pq.write_table(logs, folder / "shuffled.parquet")


def command(*words: object) -> float:
    """Runs a command on one thread; its CPU seconds. Raises RuntimeError with its last words where it fails."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(list(map(str, words)), stdout=printed, stderr=subprocess.STDOUT, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            printed.seek(0)
            raise RuntimeError(f"{' '.join(map(str, words))}\n{printed.read()[-3000:]}")
    return usage.ru_utime + usage.ru_stime


def run_world(seed: int, rows: int) -> dict:
    """Every scorer, baseline and the oracle on one world."""
    python, lmgym = sys.executable, Path(sys.executable).with_name("lmgym")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        command(lmgym, "world", "--rows", rows, "--seed", seed, "--output", folder / "world")
        model_seconds = command(lmgym, "world-model", "--world", folder / "world", "--output", folder / "model")
        shuffle_labels(folder / "world", seed)
        result = {
            "world": seed,
            "model_cpu_seconds": model_seconds,
            "baselines": baselines(folder / "world"),
            "runs": {},
        }
        for name, (experiment, data, settings) in RUNS.items():
            began = time.perf_counter()
            flags = [part for flag, value in settings.items() for part in (f"--{flag}", value)]
            seconds = command(
                *(python, EXPERIMENTS / f"{experiment}.py", "--model", folder / "model", "--max_length", 256),
                *("--dataset", folder / f"world/{data}.parquet", "--probe_data", folder / "world", *flags),
                *("--output", folder / name),
            )  # fmt: skip
            found = json.loads((folder / name / "evaluation.json").read_text())
            result["runs"][name] = {
                "cpu_seconds": seconds,
                "minutes": (time.perf_counter() - began) / 60,
                "metrics": found["metrics"],
            }
            print(
                f"world {seed}, {name}: {found['metrics']['gold/gold_spearman']:.3f}, {seconds:.0f} CPU s", flush=True
            )
    return result


def table(results: list[dict]) -> str:
    """Mean and range over worlds of each one's Spearman, and of its share of the oracle's, as Markdown."""
    lines = ["| scorer | Spearman with the hidden utility | share of the oracle's | CPU seconds |", "|---|---|---|---|"]
    oracle = [result["baselines"]["oracle"] for result in results]
    rows: dict[str, tuple[list[float], str]] = {}
    for name in RUNS:
        runs = [result["runs"][name] for result in results]
        rows[name] = (
            [run["metrics"]["gold/gold_spearman"] for run in runs],
            f"{statistics.mean(run['cpu_seconds'] for run in runs):.0f}",
        )
    for name in ("length", "bag_of_words", "oracle"):
        rows[name] = [result["baselines"][name] for result in results], ""
    for name, (values, seconds) in rows.items():
        shares = [value / best for value, best in zip(values, oracle, strict=True)]
        cells = [f"{statistics.mean(x):.3f} ({min(x):.3f} to {max(x):.3f})" for x in (values, shares)]
        lines.append(f"| {name} | {cells[0]} | {cells[1]} | {seconds} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--draw", type=int, help="so many worlds, their seeds out of the commit's hash")
    which.add_argument("--seeds", type=int, nargs="+", help="these worlds")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/behaviour.json")
    arguments = parser.parse_args()
    record = {"rows": arguments.rows, "settings": {"logs": LOGS, "ranked": RANKED}, "machine": describe_machine()}
    done = json.loads(arguments.output.read_text()) if arguments.output.exists() else {"worlds": []}
    if arguments.draw and done["worlds"]:
        commit, seeds = done["commit"], done["seeds"]  # drawn before the first of them
    else:
        commit, seeds = draw_seeds(arguments.draw) if arguments.draw else ("", arguments.seeds)
    results: dict[int, dict] = {result["world"]: result for result in done["worlds"]}
    print(f"worlds {seeds}, of which done {sorted(results)}", flush=True)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(run_world, seed, arguments.rows) for seed in seeds if seed not in results]
        for future in as_completed(waiting):
            results[future.result()["world"]] = future.result()
            worlds = [results[seed] for seed in seeds if seed in results]
            whole = {**record, "commit": commit, "seeds": seeds, "worlds": worlds}
            write_result(arguments.output, whole, "world", "rows", "method", "intervals")
            print(table(worlds), flush=True)


if __name__ == "__main__":
    main()
