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
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # before this folder, whose ppo.py is no package

import model_costs
import numpy as np
import torch
from machine import describe_gpu, describe_machine
from model_costs import Rows, Shape, Way
from roofs import data_sheet, measure_roofs, seconds_of, synchronize
from runners.ours_iteration import Iteration
from shapes import random_model, read_shape

from lmgym.config import ModelConfig, OptimizerConfig, RunConfig
from lmgym.generation import steps
from lmgym.models.classifiers import Float32Head
from lmgym.models.memory import GIB
from ppo.actor_critic import adapted
from ppo.algorithms.learning import advantage_estimator
from ppo.config import MethodConfig, PPOConfig, RolloutConfig
from ppo.rollouts import Rollouts

ROOT = Path(__file__).resolve().parent.parent
BATCH, EPOCHS, NEW_TOKENS, PROMPT_TOKENS = 16, 4, 48, (64, 128)
WAYS = {
    "tiny": (Way("shared_head"), Way("hydra", 2), Way("lora", lora_rank=4)),
    "qwen3-0.6b": (Way("shared_head"), Way("hydra", 24), Way("lora", lora_rank=16)),
    "qwen3-8b": (Way("hydra", 32), Way("lora", lora_rank=16)),
}
SCORERS = {"tiny": "tiny", "qwen3-0.6b": "qwen3-0.6b", "qwen3-8b": "qwen3-0.6b"}
MOST_GAP = {"fp32": 1e-4, "bf16": 0.02}  # nats a token between sampler and trainer, on average
MOST_KL = {"fp32": 1e-5, "bf16": 1e-3}  # nats a token, between a policy and the reference that it still is
LOGIT_STD = 0.64  # of random weights of std .02 at width 1024
PHASES = ("weights to sampler", "generation", "scores", "log-probs, values, reference", "advantages", "epochs")


@dataclass(frozen=True)
class NoText:
    """A tokenizer for token ids that are never decoded."""

    size: int
    pad_token_id = 0
    eos_token_id = 1

    def __len__(self) -> int:
        return self.size

    def decode(self, ids, **settings) -> str:
        """Nothing."""
        return ""


@dataclass
class Bench:
    """A model trained in one way, and what it is asked."""

    name: str
    way: Way
    device: torch.device
    arguments: argparse.Namespace

    def __post_init__(self) -> None:
        self.shape, self.scorer_shape = (Shape.of(read_shape(name)) for name in (self.name, SCORERS[self.name]))
        low, high = PROMPT_TOKENS
        # every iteration has the same lengths: they differ by the machine alone
        self.lengths = np.random.default_rng(self.arguments.seed).integers(low, high + 1, BATCH).tolist()

    @property
    def precision(self) -> str:
        """A rehearsal is exact."""
        return "bf16" if self.device.type == "cuda" else "fp32"

    @property
    def rows(self) -> Rows:
        """Rows as they run through the policy, without the last token, whose output is not used."""
        return Rows([n + NEW_TOKENS - 1 for n in self.lengths], [NEW_TOKENS] * BATCH)

    def config(self) -> PPOConfig:
        """In our words."""
        unfrozen = self.shape.layers - self.way.frozen_layers if self.way.frozen_layers else -1
        return PPOConfig(
            name="ppo_on_gpu",
            policy=ModelConfig(self.name, precision=self.precision, lora_rank=self.way.lora_rank),
            rollout=RolloutConfig(num_rollouts=BATCH, max_new_tokens=NEW_TOKENS, generation_batch_size=BATCH),
            method=MethodConfig(ppo_epochs=EPOCHS, num_layers_unfrozen=unfrozen),
            optimizer=OptimizerConfig(
                learning_rate=1e-5, global_batch=BATCH, micro_batch=self.arguments.micro_batch, seed=self.arguments.seed
            ),
            run=RunConfig(tracking="none"),
        )

    def build(self) -> Iteration:
        """Random models, made on the device and nowhere else."""
        tokenizer, seed, device = NoText(self.shape.vocabulary), self.arguments.seed, str(self.device)
        policy = random_model(self.name, tokenizer, "causal", seed, device)
        if not self.shape.tied:  # the gap between two roundings grows with the logits, and says nothing of the code
            with torch.no_grad():
                policy.lm_head.weight.mul_(LOGIT_STD / (0.02 * self.shape.width**0.5))
        actor, reference = adapted(self.config(), policy)
        classifier = random_model(SCORERS[self.name], tokenizer, "classifier", seed + 1, device)
        classifier.score.__class__ = Float32Head  # as load_classifier has it
        return Iteration.of(self.config(), actor, reference, classifier, tokenizer, self.device)

    def prompts(self, iteration: int) -> list[list[int]]:
        """Random ids, others each time."""
        rng = np.random.default_rng([self.arguments.seed, iteration])
        return [rng.integers(2, self.shape.vocabulary, length).tolist() for length in self.lengths]

    def check_memory(self) -> str | None:
        """A line where the GPU has no room."""
        if self.device.type != "cuda":
            return None
        rows = Rows(*(part[: self.arguments.micro_batch] for part in (self.rows.lengths, self.rows.reads)))
        needed = model_costs.memory_needed(self.shape, self.scorer_shape, self.way, rows, True)
        torch.cuda.empty_cache()  # what the run before has cached is not free to the driver
        free, _ = torch.cuda.mem_get_info(self.device)
        if sum(needed.values()) <= free:
            return None
        return (
            f"needs about {model_costs.in_words(needed)}, {free / GIB:.1f} GiB are free; needed: a larger GPU, "
            f"fewer layers unfrozen, or a smaller --micro_batch (now {self.arguments.micro_batch})"
        )

    def work(self) -> dict[str, dict[str, float]]:
        """Tokens, and operations or bytes, by phase."""
        shape, way, rows = self.shape, self.way, self.rows
        reused = self.arguments.micro_batch >= BATCH  # ppo/experience.py keeps the first forward
        sampled, through = BATCH * NEW_TOKENS, sum(rows.lengths)
        whole = [n + NEW_TOKENS for n in self.lengths]
        size = 2 if self.precision == "bf16" else 4
        return {
            "generation": {
                "tokens": sampled,
                "bytes": model_costs.generation_bytes(shape, way, self.lengths, NEW_TOKENS, size),
            },
            "scores": {"tokens": sum(whole), "flops": model_costs.scoring_flops(self.scorer_shape, whole)},
            "log-probs, values, reference": {
                "tokens": through,
                "flops": model_costs.experience_flops(shape, way, rows),
            },
            "epochs": {
                "tokens": EPOCHS * through,
                "flops": model_costs.learning_flops(shape, way, rows, EPOCHS, reused),
            },
        }


class Clock:
    """Seconds of each phase, an entry an iteration; a GPU is waited for at both ends."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.found: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds one."""
        synchronize(self.device)
        began = time.perf_counter()
        yield
        synchronize(self.device)
        self.found[name].append(time.perf_counter() - began)


def iterate(bench: Bench, ours: Iteration, number: int, clock: Clock) -> tuple[Rollouts, list[tuple[float, float]]]:
    """One iteration as ppo/train.py runs it; its rollouts and losses."""
    with clock.phase("weights to sampler"):
        ours.sampler.sync()
    with clock.phase("generation"):
        rollouts = ours.sample(bench.prompts(number), seed=bench.arguments.seed + number)
    with clock.phase("scores"):
        rollouts.scores[rollouts.row_starts[1:] - 1] = ours.score(rollouts)
    with clock.phase("log-probs, values, reference"):
        ours.experience.measure(rollouts)
    with clock.phase("advantages"):
        advantage_estimator(ours.config)(rollouts, ours.config.algorithm.init_kl_coef)
    with clock.phase("epochs"):
        learned = ours.learner.learn(rollouts, number, number * EPOCHS)
    return rollouts, [(update["policy_loss"], update["value_loss"]) for update in learned.curve]


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
