"""An iteration of PPO at the shapes of Qwen3-0.6B and Qwen3-8B on one GPU, in bf16, beside what the GPU can do at most.

    python3 benchmarks/ppo_on_gpu.py                                  # writes benchmarks/results/ppo_on_gpu.json
    python3 benchmarks/ppo_on_gpu.py --device cpu --models tiny --output /tmp/x.json   # a rehearsal in fp32

Weights and prompts are random, from fixed seeds; nothing is read from a disk. Phases are those of ppo/train.py, wall
seconds with the GPU waited for at both ends, medians over iterations after warm-up ones. Before any is timed: the
policy that samples is the one that learns, the reference is the policy, losses are finite, weights that train change.
"""

import argparse
import datetime
import gc
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # before this folder, whose ppo.py is no package

import model_costs
import numpy as np
import torch
from gpu_bench import BATCH, EPOCHS, NEW_TOKENS, PROMPT_TOKENS, WAYS, Bench, Clock, iterate
from machine import describe_gpu, describe_machine
from roofs import data_sheet, measure_roofs, seconds_of, synchronize
from runners.ours_iteration import Iteration

from lmgym.generation import steps
from lmgym.models.memory import GIB
from ppo.rollouts import Rollouts

ROOT = Path(__file__).resolve().parent.parent
MOST_GAP = {"fp32": 1e-4, "bf16": 0.02}  # nats a token between sampler and trainer, on average
MOST_KL = {"fp32": 1e-5, "bf16": 1e-3}  # nats a token, between a policy and the reference that it still is
PHASES = ("weights to sampler", "generation", "scores", "log-probs, values, reference", "advantages", "epochs")


def check(bench: Bench, ours: Iteration) -> dict[str, float]:
    """A first iteration, what it shows, and `failed`: how many of these are not as they must be."""
    trained = [p for p in ours.actor.parameters() if p.requires_grad]
    frozen = next((p for p in ours.actor.parameters() if not p.requires_grad), None)
    before = [p.detach().clone() for p in trained]
    frozen_before = None if frozen is None else frozen.detach().clone()
    rollouts, curve = iterate(bench, ours, 0, Clock(bench.device))
    gap = (rollouts.old_logprobs - rollouts.sampler_logprobs).abs()
    apart = (rollouts.old_logprobs - rollouts.reference_logprobs).abs()
    found = {
        "sampler_gap_mean": float(gap.mean()),
        "sampler_gap_largest": float(gap.max()),
        "reference_apart_mean": float(apart.mean()),
        "first_policy_loss": curve[0][0],
        "last_value_loss": curve[-1][1],
        "weights_changed": sum(not torch.equal(a, b) for a, b in zip(before, trained, strict=True)) / len(trained),
        "logprobs_std": float(rollouts.old_logprobs.std()),
    }
    # a sampler in fp32 knows its log-probabilities, and the gap is of the batch that was computed again: all of it here
    right = {
        "sampler_gap_mean": found["sampler_gap_mean"] < MOST_GAP[bench.precision],
        "reference_apart_mean": found["reference_apart_mean"] <= MOST_KL[bench.precision],
        "losses": bool(np.isfinite(curve).all()),
        "scores": bool(torch.isfinite(rollouts.scores).all() and rollouts.scores.any()),
        "weights_changed": found["weights_changed"] == 1.0,
        "frozen_weights": frozen_before is None or torch.equal(frozen, frozen_before),
        "log-probabilities vary": found["logprobs_std"] > 0.1,
    }
    wrong = [name for name, fine in right.items() if not fine]
    if wrong:
        print(f"NOT RIGHT: {bench.name} {bench.way.name}: {', '.join(wrong)} in {found}", flush=True)
    return found | {"failed": len(wrong)}


def summary(values: list[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def judged(seconds: dict[str, list[float]], work: dict[str, dict[str, float]], roofs: dict[str, float]) -> dict:
    """Seconds, tokens per second, and the share of the device's bandwidth or operations, by phase."""
    found = {}
    for phase in PHASES:
        entry: dict[str, object] = {"seconds": summary(seconds[phase])}
        for name, amount in work.get(phase, {}).items():
            rate = amount / statistics.median(seconds[phase])
            entry |= {name: amount, f"{name}_per_second": rate}
            if name != "tokens":
                entry["share"] = rate / roofs[f"{name}_per_second"]
        found[phase] = entry
    return found


def measure(bench: Bench, roofs: dict[str, float]) -> dict:
    """Checks, then medians over the iterations after the warm-up."""
    if reason := bench.check_memory():
        return {"skipped": reason}
    if bench.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(bench.device)
    began = time.perf_counter()
    ours = bench.build()
    synchronize(bench.device)
    built, checks = time.perf_counter() - began, check(bench, ours)
    clock = Clock(bench.device)
    first, last = 1 + bench.arguments.warmup, 1 + bench.arguments.warmup + bench.arguments.iterations
    for number in range(1, last):
        rollouts, _ = iterate(bench, ours, number, clock if number >= first else Clock(bench.device))
    iterations = [sum(parts) for parts in zip(*clock.found.values(), strict=True)]
    needed = model_costs.memory_needed(
        bench.shape, bench.scorer_shape, bench.way, bench.rows, bench.precision == "bf16"
    )
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "precision": bench.precision,
        "way": vars(bench.way),
        "checks": checks,
        "build_seconds": built,
        "iteration_seconds": summary(iterations),
        "samples_per_second": BATCH / statistics.median(iterations),
        "phases": judged(clock.found, bench.work(), roofs),
        "besides": besides(bench, ours, rollouts),
        "gib_expected": sum(needed.values()) / GIB,
        "gib_at_peak": torch.cuda.max_memory_allocated(bench.device) / GIB if bench.device.type == "cuda" else None,
    }


def besides(bench: Bench, ours: Iteration, rollouts: Rollouts) -> dict[str, float]:
    """Seconds of the same without what makes it quick; the second of two."""
    prompts, found = bench.prompts(1), {}

    def twice(work: Callable[[], object]) -> float:
        return [seconds_of(work, bench.device) for _ in range(2)][1]

    ours.sampler.sync()
    least, steps.GRAPH_STEPS = steps.GRAPH_STEPS, 1 << 30
    found["generation without captured graphs"] = twice(lambda: ours.sample(prompts, 0))
    steps.GRAPH_STEPS = least
    found["scores in fp32"] = twice(lambda: ours.score(rollouts, exact=True))
    return found


def record_of(arguments: argparse.Namespace, device: torch.device) -> dict:
    """The machine, what it can do, and former runs of other models on it."""
    machine = describe_machine() | ({"gpu": describe_gpu()} if device.type == "cuda" else {})
    name = machine["gpu"]["name"] if device.type == "cuda" else machine["cpu"]
    former = json.loads(arguments.output.read_text()) if arguments.output.is_file() else {}
    kept = former.get("runs", {}) if former.get("name") == name else {}
    return {
        "name": name,
        "machine": machine,
        "versions": {package: version(package) for package in ("torch", "transformers", "peft", "numpy")},
        "roofs": measure_roofs(device),
        "data_sheet": data_sheet(name),
        "settings": {
            "batch": BATCH, "epochs": EPOCHS, "new_tokens": NEW_TOKENS, "prompt_tokens": PROMPT_TOKENS,
            "micro_batch": arguments.micro_batch, "iterations": arguments.iterations, "warmup": 1 + arguments.warmup,
            "seed": arguments.seed,
        },
        "runs": kept,
    }  # fmt: skip


def show(record: dict) -> None:
    """The table: a line a phase."""
    copied, multiplied = (record["roofs"][f"{name}_per_second"] / 1e12 for name in ("bytes", "flops"))
    print(f"\n{record['name']}: {copied:.2f} TB/s by a copy, {multiplied:.0f} TFLOP/s by a product")
    print(f"data sheet: {record['data_sheet']}")
    print(f"{'':22} {'':30} {'seconds':>9} {'range':>17} {'tokens/s':>10} share")
    for name, run in record["runs"].items():
        if "phases" not in run:
            print(f"{name:22} {run}")
            continue
        for phase, entry in run["phases"].items():
            s = entry["seconds"]
            spread = f"{s['least']:.4f}-{s['most']:.4f}"
            of = "bytes/s" if "bytes" in entry else "FLOP/s"
            share = f"{entry['share']:.3f} of {of}" if "share" in entry else ""
            rate = f"{entry['tokens_per_second']:.0f}" if "tokens_per_second" in entry else ""
            print(f"{name:22} {phase:30} {s['median']:>9.4f} {spread:>17} {rate:>10} {share}")
        peak, checks = run["gib_at_peak"] or 0, run["checks"]
        print(
            f"{name:22} {run['samples_per_second']:.1f} samples/s, {peak:.1f} GiB ({run['gib_expected']:.1f} expected)"
            f", gap {checks['sampler_gap_mean']:.4f}, {checks['failed']} checks failed, {run['besides']}"
        )


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=WAYS, default=["qwen3-0.6b", "qwen3-8b"])
    parser.add_argument("--ways", nargs="+", choices=("shared_head", "hydra", "lora"), help="default: all of a model's")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--iterations", type=int, default=7, help="that are timed")
    parser.add_argument("--warmup", type=int, default=2, help="besides the one that is checked")
    parser.add_argument("--micro_batch", type=int, default=BATCH)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/ppo_on_gpu.json")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA GPU is at hand; needed: one, or --device cpu --models tiny for a rehearsal", file=sys.stderr)
        return 2
    device = torch.device(arguments.device)
    record, failed = record_of(arguments, device), False
    for name in arguments.models:
        for way in WAYS[name]:
            if arguments.ways and way.name not in arguments.ways:
                continue
            print(f"{name} {way.name} ...", flush=True)
            try:
                run = measure(Bench(name, way, device, arguments), record["roofs"])
            except Exception as error:  # what is left of the time on a borrowed machine goes to the others
                run = {"error": f"{type(error).__name__}: {error}"}
                traceback.print_exc()
            failed |= "error" in run or run.get("checks", {}).get("failed", 0) > 0
            record["runs"][f"{name} {way.name}"] = run
            arguments.output.write_text(json.dumps(record, indent=1) + "\n")
            gc.collect()  # parts of a model refer to each other
    show(record)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
