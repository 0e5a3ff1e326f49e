"""Figures of one GPU: a run that learns and is resumed; training, generation and PPO by Qwen3's shapes.

    python3 benchmarks/on_gpu.py                              # writes benchmarks/results/on_gpu.json
    python3 benchmarks/on_gpu.py --device cpu --models tiny --output /tmp/x.json   # a rehearsal in fp32

Weights and prompts are random, from fixed seeds; nothing is downloaded. Shares are of a copy and of a matrix product,
measured in the same run. docs/settings.md is made of the JSON by benchmarks/pages.py.
"""

import argparse
import gc
import json
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # before this folder, whose ppo.py is no package

import torch
from gpu_ppo import WAYS, Bench, measure
from gpu_training import CASES, data_sheet, measure_generation, measure_roofs, measure_training
from shared import ROOT, describe_gpu, describe_machine, write_result

PARTS = ("learning", "training", "generation", "ppo")
MICRO_BATCHES, BATCHES = [2048, 8192, 16384], [16, 64, 256]
ON_A_CPU = [1024], [2]
WALKS, STOP_AFTER = ("--method", "grpo", "--max_updates", "40", "--save_updates", "8", "--seed", "101"), 12


def learn(folder: Path) -> dict[str, Any]:
    """trlx's random walks by GRPO: stopped by a signal after some updates, resumed by the same command."""
    command = [sys.executable, "-m", "lmgym", "train", "ppo", "randomwalks", *WALKS, "--output", str(folder)]
    metrics, began, codes = folder / "metrics.jsonl", time.perf_counter(), []
    for stops in (True, False):
        run = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        while stops and run.poll() is None and (not metrics.is_file() or _last_update(metrics) < STOP_AFTER):
            time.sleep(0.2)
        if stops and run.poll() is None:
            run.send_signal(signal.SIGTERM)
        said, _ = run.communicate()
        codes.append(run.returncode)
        if not metrics.is_file():
            return {"exit_codes": codes, "error": "\n".join(said.splitlines()[-5:])}
    record = json.loads((folder / "run.json").read_text())
    values = [line["eval/reward/mean"] for line in _lines(metrics) if "eval/reward/mean" in line]
    return {
        "command": " ".join(["lmgym", *command[3:-2]]),
        "exit_codes": codes,
        "resumed_at": record.get("resumed_at"),
        "seconds": time.perf_counter() - began,
        "reward_before": values[0] if values else None,
        "reward_after": values[-1] if values else None,
        "said": said.splitlines()[-3:],
    }


def _lines(path: Path) -> list[dict[str, Any]]:
    found = []
    for line in path.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:  # being written
            continue
    return found


def _last_update(path: Path) -> int:
    return max((line.get("step", 0) for line in _lines(path)), default=0)


def record_of(arguments: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """The machine, what it can do, and what was measured on it before."""
    machine = describe_machine() | ({"gpu": describe_gpu()} if device.type == "cuda" else {})
    name = machine["gpu"]["name"] if device.type == "cuda" else machine["cpu"]
    former = json.loads(arguments.output.read_text()) if arguments.output.is_file() else {}
    kept = former if former.get("name") == name else {}
    return {
        "name": name,
        "machine": machine,
        "versions": {package: version(package) for package in ("torch", "transformers", "peft", "numpy")},
        "roofs": measure_roofs(device),
        "data_sheet": data_sheet(name),
        **{part: kept.get(part, {}) for part in PARTS},
    }


def tasks_of(arguments: argparse.Namespace, device: torch.device, roofs: dict) -> dict[str, dict[str, Callable]]:
    """Measurements to be made, by part and name."""
    sizes, batches = ON_A_CPU if device.type == "cpu" else (MICRO_BATCHES, BATCHES)
    found: dict[str, dict[str, Callable]] = {part: {} for part in PARTS}
    found["learning"]["random walks"] = lambda: learn(arguments.output.with_suffix(".walks"))
    for name in arguments.models:
        for case in CASES[name]:
            found["training"][str(case)] = lambda case=case: measure_training(case, sizes, device)
        found["generation"][name] = lambda name=name: measure_generation(name, batches, roofs, device)
        for way in WAYS[name]:
            found["ppo"][f"{name} {way.name}"] = lambda name=name, way=way: measure(
                Bench(name, way, device, arguments), roofs
            )
    return {part: found[part] for part in arguments.parts}


def went_wrong(found: Any) -> bool:
    """A run of PPO whose checks failed, a run that did not learn or did not end well, an exception."""
    if not isinstance(found, dict):
        return False
    if "exit_codes" in found and "error" not in found:
        learned = (found["reward_after"] or 0) > (found["reward_before"] or 0) + 0.2
        return found["exit_codes"][-1] != 0 or not found["resumed_at"] or not learned
    return "error" in found or found.get("checks", {}).get("failed", 0) > 0


def show(record: dict[str, Any]) -> None:
    """A line for each figure."""
    copied, multiplied = (record["roofs"][f"{name}_per_second"] / 1e12 for name in ("bytes", "flops"))
    print(f"\n{record['name']}: {copied:.2f} TB/s by a copy, {multiplied:.0f} TFLOP/s by a product")
    print(json.dumps(record["learning"]))
    for part in ("training", "generation"):
        for name, entries in record[part].items():
            for entry in entries if isinstance(entries, list) else [entries]:
                print(f"{part} {name}:", ", ".join(f"{key} {_short(value)}" for key, value in entry.items()))
    for name, run in record["ppo"].items():
        if "phases" not in run:
            print(f"ppo {name}: {run}")
            continue
        phases = "; ".join(
            f"{phase} {entry['seconds']['median']:.2f} s" + (f" ({entry['share']:.0%})" if "share" in entry else "")
            for phase, entry in run["phases"].items()
        )
        held = ", ".join(f"{phase} {gib:.1f}" for phase, gib in run["gib_by_phase"].items())
        print(
            f"ppo {name}: {run['samples_per_second']:.1f} samples/s, {run['gib_at_peak'] or 0:.1f} GiB "
            f"({run['gib_expected']:.1f} expected), gap {run['checks']['sampler_gap_mean']:.4f}, "
            f"{run['checks']['failed']} checks failed; {phases}; GiB at rest {run['gib_at_rest'] or 0:.1f}, {held}"
        )


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=WAYS, default=["qwen3-0.6b", "qwen3-4b", "qwen3-8b"])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--iterations", type=int, default=2, help="of PPO, that are timed")
    parser.add_argument("--warmup", type=int, default=0, help="iterations besides the one that is checked")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/on_gpu.json")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA GPU is at hand; needed: one, or --device cpu --models tiny for a rehearsal", file=sys.stderr)
        return 2
    device = torch.device(arguments.device)
    record, failed = record_of(arguments, device), False
    for part, tasks in tasks_of(arguments, device, record["roofs"]).items():
        for name, task in tasks.items():
            began = time.perf_counter()
            try:
                found = task()
            except Exception as error:  # what is left of the time on a borrowed machine goes to the others
                found = {"error": f"{type(error).__name__}: {error}"[:500]}
                traceback.print_exc()
            failed |= went_wrong(found)
            record[part][name] = found
            write_result(arguments.output, record)
            gc.collect()  # parts of a model refer to each other
            print(f"{part} {name}: {time.perf_counter() - began:.0f} s", flush=True)
    show(record)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
