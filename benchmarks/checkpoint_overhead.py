"""The cost of verified checkpoints: syncing, hashing and the manifest, compared with only writing the same files.

    .venv/bin/python benchmarks/checkpoint_overhead.py        # writes benchmarks/results/checkpoint_overhead.json

One process saves weights and AdamW's moments of a model, turn and turn about: plainly (safetensors and torch.save into
a folder, no sync), and by `Checkpoints.save`. Verifying it, as a resume does, is timed too. Wall seconds, medians.
"""

import argparse
import datetime
import json
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from shared import ROOT, describe_machine

from lmgym.runs import checkpoint_files
from lmgym.runs.checkpoints import Checkpoints

TENSOR = 1 << 20


def make_state(parameters: int) -> tuple[dict[str, torch.Tensor], dict]:
    """Weights of so many numbers, and an optimizer state with two moments of each."""
    torch.manual_seed(0)
    weights = {f"weight_{i}": torch.randn(TENSOR) for i in range(parameters // TENSOR)}
    moments = {i: {"exp_avg": torch.randn(TENSOR), "exp_avg_sq": torch.rand(TENSOR)} for i in range(len(weights))}
    return weights, {"state": moments}


def timed(work: Callable[[], object]) -> float:
    """Wall seconds."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(parameters: int, repetitions: int, folder: Path) -> dict[str, list[float]]:
    """Seconds of each way, repetition after repetition; the parts of ours by what they do."""
    weights, optimizer = make_state(parameters)
    seconds: dict[str, list[float]] = {name: [] for name in ("plain", "ours", "syncing", "hashing", "verifying")}
    parts = {"syncing": "sync", "hashing": "file_hash"}

    def write(path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        save_file(weights, path / "model.safetensors")
        torch.save(optimizer, path / "optimizer.pt")

    store = Checkpoints(folder / "ours", "benchmark", limit=1)
    for repetition in range(repetitions):
        shutil.rmtree(folder / "plain", ignore_errors=True)
        seconds["plain"].append(timed(lambda: write(folder / "plain")))
        spent = dict.fromkeys(parts, 0.0)
        originals = {name: getattr(checkpoint_files, function) for name, function in parts.items()}
        for name, function in parts.items():
            setattr(checkpoint_files, function, _added(originals[name], spent, name))
        seconds["ours"].append(timed(lambda step=repetition: store.save(step, write, {})))
        for name, function in parts.items():
            setattr(checkpoint_files, function, originals[name])
            seconds[name].append(spent[name])
        seconds["verifying"].append(timed(store.newest))
    return seconds


def _added(function: Callable, spent: dict[str, float], name: str) -> Callable:
    def run(path: Path):
        began = time.perf_counter()
        found = function(path)
        spent[name] += time.perf_counter() - began
        return found

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, nargs="+", default=[2_097_152, 26_214_400, 104_857_600])
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=ROOT / "outputs/checkpoint_overhead")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/checkpoint_overhead.json")
    arguments = parser.parse_args()
    record = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "sizes": [],
    }
    print(f"{'parameters':>12} {'bytes':>14} {'plain':>8} {'ours':>8} {'syncing':>8} {'hashing':>8} {'verifying':>9}")
    for parameters in arguments.parameters:
        seconds = measure(parameters, arguments.repetitions, arguments.folder)
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        size = sum(p.stat().st_size for p in (arguments.folder / "plain").rglob("*") if p.is_file())
        record["sizes"].append({"parameters": parameters, "bytes": size, "medians": medians, "seconds": seconds})
        print(f"{parameters:>12,} {size:>14,} " + " ".join(f"{medians[name]:>8.3f}" for name in seconds))
        shutil.rmtree(arguments.folder)
    arguments.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
