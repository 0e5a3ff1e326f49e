"""An iteration of PPO with random weights of a shape on one GPU, in bf16: its phases, memory, and the roofs' shares.

Phases are those of ppo/train.py, wall seconds with the GPU waited for at both ends. Before any is timed: the policy
that samples is the one that learns, the reference is the policy, losses are finite, weights that train change.
"""

import datetime
import statistics
import time

import numpy as np
import torch
from gpu_bench import Bench, Clock, iterate
from roofs import synchronize
from runners.ours_iteration import Iteration

from lmgym.models.memory import GIB

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
    began = time.perf_counter()
    ours = bench.build()
    synchronize(bench.device)
    built, checks = time.perf_counter() - began, check(bench, ours)
    at_rest = torch.cuda.memory_allocated(bench.device) / GIB if bench.device.type == "cuda" else None
    clock = Clock(bench.device)
    first, last = 1 + bench.arguments.warmup, 1 + bench.arguments.warmup + bench.arguments.iterations
    for number in range(1, last):
        iterate(bench, ours, number, clock if number >= first else Clock(bench.device))
    iterations = [sum(parts) for parts in zip(*clock.found.values(), strict=True)]
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "precision": bench.precision,
        "way": vars(bench.way),
        "sizes": vars(bench.sizes),
        "checks": checks,
        "build_seconds": built,
        "iteration_seconds": summary(iterations),
        "samples_per_second": bench.sizes.batch / statistics.median(iterations),
        "phases": judged(clock.found, bench.work(), roofs),
        "gib_expected": bench.memory() / GIB,
        "gib_at_rest": at_rest,
        "gib_by_phase": clock.gib,
        "gib_at_peak": max(clock.gib.values(), default=None),
    }
