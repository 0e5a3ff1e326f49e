"""The interface of all runners: the spec they read, the clock, and the result they write.

A runner is `python benchmarks/runners/NAME.py SPEC.json RESULT.json`, one process on one thread.
Import this module before torch: it sets the thread count and keeps Hugging Face off the network.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"  # TRL also pings home at start unless told not to
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

import argparse
import json
import random
import resource
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from transformers import TrainerCallback

torch.set_num_threads(1)


@dataclass(frozen=True)
class Spec:
    """One run: what to train on, in which order, with which settings."""

    model: str
    pairs: str
    variant: str
    pairs_per_update: int
    micro_batch: int
    updates: int
    warmup_updates: int
    learning_rate: float
    seed: int
    dtype: str
    order: list[list[int]]
    max_length: int = 256
    loss: str = ""
    """dpo or kto, of preferences"""

    @property
    def accumulation_steps(self) -> int:
        """Micro-batches an update. Raises ValueError where they do not fit."""
        if self.pairs_per_update % self.micro_batch:
            raise ValueError(f"micro_batch={self.micro_batch} does not divide pairs_per_update={self.pairs_per_update}")
        return self.pairs_per_update // self.micro_batch


def read_spec(path: str | Path) -> Spec:
    """The spec of a run. Raises TypeError on a key it does not know, ValueError on a value that makes no sense."""
    spec = Spec(**json.loads(Path(path).read_text()))
    if not 1 <= spec.warmup_updates < spec.updates:
        raise ValueError(f"warmup_updates={spec.warmup_updates} must be at least 1 and below updates={spec.updates}")
    if spec.dtype not in ("bf16", "fp32"):
        raise ValueError(f"dtype={spec.dtype!r} must be bf16 or fp32")
    return spec


def ordered_pairs(spec: Spec) -> list[dict[str, list[int]]]:
    """Pairs in the order of training: prompt_ids, chosen_ids and rejected_ids, the last two without the prompt."""
    with open(spec.pairs, encoding="utf-8") as lines:
        pairs = [json.loads(line) for line in lines]
    return [pairs[index] for update in spec.order for index in update]


def full_sequences(spec: Spec) -> list[dict[str, list[int]]]:
    """Rows in the order of training, prompt and suffix joined, for padded trainers: chosen_ids, rejected_ids."""
    return [
        {name: pair["prompt_ids"] + pair[name] for name in ("chosen_ids", "rejected_ids")}
        for pair in ordered_pairs(spec)
    ]


def thumbs(spec: Spec) -> list[dict]:
    """Both sides of each pair as single replies, shuffled within their update: prompt_ids, completion_ids, label.

    KL_completion_ids is the reply before it in its micro-batch of 2 * micro_batch replies, the first having the last:
    TRL's rule. One that does not fit behind the prompt loses tokens before its eos.
    """
    generator, pairs, rows = random.Random(spec.seed), ordered_pairs(spec), []
    for start in range(0, len(pairs), spec.pairs_per_update):
        update = [
            {"prompt_ids": pair["prompt_ids"], "completion_ids": pair[name], "label": name == "chosen_ids"}
            for pair in pairs[start : start + spec.pairs_per_update]
            for name in ("chosen_ids", "rejected_ids")
        ]
        generator.shuffle(update)
        rows += update
    for number, row in enumerate(rows):
        first = number - number % (2 * spec.micro_batch)
        other = rows[number - 1 if number > first else first + 2 * spec.micro_batch - 1]["completion_ids"]
        row["KL_completion_ids"] = [*other[:-1][: spec.max_length - len(row["prompt_ids"]) - 1], other[-1]]
    return rows


def measured_tokens(spec: Spec) -> int:
    """Real tokens of the measured updates, both sides of each pair in full: the same for every runner of a spec."""
    rows = full_sequences(spec)[spec.warmup_updates * spec.pairs_per_update :]
    return sum(len(row["chosen_ids"]) + len(row["rejected_ids"]) for row in rows)


class UpdateClock(TrainerCallback):
    """CPU and wall seconds between the end of the last warm-up update and the end of the last update, and the losses.

    Needs logging_steps=1. Trainer's logged loss is the update's mean, unrounded since transformers 5.
    """

    def __init__(self, spec: Spec, profile: bool = False) -> None:
        self.spec = spec
        self.profiler = torch.profiler.profile() if profile else None
        self.losses: list[float] = []
        self.cpu_seconds = self.wall_seconds = 0.0

    def on_step_end(self, args, state, control, **kwargs) -> None:
        now = time.process_time(), time.perf_counter()
        if state.global_step == self.spec.warmup_updates:
            self.start = now
            if self.profiler:
                self.profiler.start()
        if state.global_step == self.spec.updates:
            self.cpu_seconds, self.wall_seconds = now[0] - self.start[0], now[1] - self.start[1]
            if self.profiler:
                self.profiler.stop()
                print(self.profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=18))

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if "loss" in logs:
            self.losses.append(logs["loss"])


def write_result(
    path: str | Path, runner: str, spec: Spec, clock: UpdateClock, packages: tuple[str, ...],
    reference_cpu_seconds: float = 0.0,
) -> None:  # fmt: skip
    """Write what the driver reads. `reference_cpu_seconds` were spent on all pairs before the first update: those of
    the measured pairs count.
    """
    assert len(clock.losses) == spec.updates, "one loss an update"
    pairs = (spec.updates - spec.warmup_updates) * spec.pairs_per_update
    tokens = measured_tokens(spec)
    of_reference = reference_cpu_seconds * pairs / (spec.updates * spec.pairs_per_update)
    cpu_seconds = clock.cpu_seconds + of_reference
    result = {
        "runner": runner,
        "variant": spec.variant,
        "micro_batch": spec.micro_batch,
        "cpu_seconds": cpu_seconds,
        "reference_cpu_seconds": of_reference,
        "wall_seconds": clock.wall_seconds,
        "pairs": pairs,
        "tokens": tokens,
        "pairs_per_cpu_second": pairs / cpu_seconds,
        "tokens_per_cpu_second": tokens / cpu_seconds,
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "losses": clock.losses,
        "versions": {package: version(package) for package in ("torch", "transformers", "accelerate", *packages)},
    }
    Path(path).write_text(json.dumps(result, indent=1))


def parse_paths() -> argparse.Namespace:
    """The arguments of every runner. --profile prints where the time went; its own cost spoils the clock."""
    parser = argparse.ArgumentParser(description="One benchmark run: see benchmarks/README.md")
    parser.add_argument("spec")
    parser.add_argument("result")
    parser.add_argument("--profile", action="store_true", help="print torch's profile of the measured updates")
    parser.add_argument("--count", action="store_true", help="PPO: count the operations of matrix products")
    return parser.parse_args()
