"""An iteration of PPO with random weights of a shape on one GPU, in bf16: its phases, memory, and the roofs' shares.

Phases are those of ppo/train.py, wall seconds with the GPU waited for at both ends. Before any is timed: the policy
that samples is the one that learns, the reference is the policy, losses are finite, weights that train change.
"""

import argparse
import datetime
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import model_costs
import numpy as np
import torch
from gpu_training import NoText, synchronize
from model_costs import Rows, Shape, Way
from runners.ours_iteration import Iteration
from shared import random_model, read_shape, saved_config

from lmgym.config import ModelConfig, OptimizerConfig, RunConfig
from lmgym.models.classifiers import Float32Head
from lmgym.models.memory import GIB
from ppo.config import MethodConfig, PPOConfig, RolloutConfig
from ppo.memory import estimate_run
from ppo.rollouts import Rollouts
from ppo.setup import adapted, make_estimator

EPOCHS = 2
MOST_GAP = {"fp32": 1e-4, "bf16": 0.02}  # nats a token between sampler and trainer, on average
MOST_KL = {"fp32": 1e-5, "bf16": 1e-3}  # nats a token, between a policy and the reference that it still is
PHASES = ("weights to sampler", "generation", "scores", "log-probs, values, reference", "advantages", "epochs")
WAYS = {
    "tiny": (Way("full"), Way("hydra", 2), Way("lora", lora_rank=4)),
    "qwen3-0.6b": (Way("full"), Way("hydra", 24), Way("lora", lora_rank=16)),
    "qwen3-4b": (Way("hydra", 32), Way("lora", lora_rank=16)),
    "qwen3-8b": (Way("hydra", 32), Way("lora", lora_rank=16)),
}


@dataclass(frozen=True)
class Sizes:
    """Of an iteration: replies, tokens of a prompt (least, most) and of a reply, and rows of a micro-batch."""

    batch: int
    prompt: tuple[int, int]
    new_tokens: int
    micro_batch: int
    checkpointing: bool
    scorer: str


SIZES = {
    "tiny": Sizes(16, (64, 128), 48, 16, False, "tiny"),
    "qwen3-0.6b": Sizes(64, (192, 256), 256, 32, False, "qwen3-0.6b"),
    "qwen3-4b": Sizes(64, (192, 256), 256, 16, True, "qwen3-0.6b"),
    "qwen3-8b": Sizes(64, (192, 256), 256, 16, True, "qwen3-0.6b"),
}
LOGIT_STD = 0.64  # of random weights of std .02 at width 1024


@dataclass
class Bench:
    """A model trained in one way, and what it is asked."""

    name: str
    way: Way
    device: torch.device
    arguments: argparse.Namespace

    def __post_init__(self) -> None:
        self.sizes = SIZES[self.name]
        self.shape, self.scorer_shape = (Shape.of(read_shape(name)) for name in (self.name, self.sizes.scorer))
        low, high = self.sizes.prompt
        # every iteration has the same lengths: they differ by the machine alone
        self.lengths = np.random.default_rng(self.arguments.seed).integers(low, high + 1, self.sizes.batch).tolist()

    @property
    def precision(self) -> str:
        """A rehearsal is exact."""
        return "bf16" if self.device.type == "cuda" else "fp32"

    @property
    def rows(self) -> Rows:
        """Rows as they run through the policy, without the last token, whose output is not used."""
        new = self.sizes.new_tokens
        return Rows([n + new - 1 for n in self.lengths], [new] * self.sizes.batch)

    def config(self) -> PPOConfig:
        """In our words."""
        unfrozen = self.shape.layers - self.way.frozen_layers if self.way.frozen_layers else -1
        sizes, seed = self.sizes, self.arguments.seed
        return PPOConfig(
            name="on_gpu",
            policy=ModelConfig(
                self.name,
                precision=self.precision,
                lora_rank=self.way.lora_rank,
                gradient_checkpointing=sizes.checkpointing,
            ),
            rollout=RolloutConfig(
                num_rollouts=sizes.batch, max_new_tokens=sizes.new_tokens, generation_batch_size=sizes.batch
            ),
            method=MethodConfig(ppo_epochs=EPOCHS, num_layers_unfrozen=unfrozen),
            optimizer=OptimizerConfig(
                learning_rate=1e-5, global_batch=sizes.batch, micro_batch=sizes.micro_batch, seed=seed
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
        classifier = random_model(self.sizes.scorer, tokenizer, "classifier", seed + 1, device)
        classifier.score.__class__ = Float32Head  # as load_classifier has it
        return Iteration.of(self.config(), actor, reference, classifier, tokenizer, self.device)

    def prompts(self, iteration: int) -> list[list[int]]:
        """Random ids, others each time."""
        rng = np.random.default_rng([self.arguments.seed, iteration])
        return [rng.integers(2, self.shape.vocabulary, length).tolist() for length in self.lengths]

    def memory(self) -> float:
        """Bytes by the estimate of ppo/check.py, and of the scorer, which is in fp32."""
        with saved_config(self.name) as folder:
            config = replace(self.config(), policy=replace(self.config().policy, model=folder))
            return estimate_run(config, None, max(self.lengths), 1).total + 4 * self.scorer_shape.weights

    def check_memory(self) -> str | None:
        """A line where the GPU has no room."""
        if self.device.type != "cuda":
            return None
        torch.cuda.empty_cache()  # what the run before has cached is not free to the driver
        free, _ = torch.cuda.mem_get_info(self.device)
        if (needed := self.memory()) <= free:
            return None
        return f"needs about {needed / GIB:.1f} GiB, {free / GIB:.1f} GiB are free; needed: a larger GPU"

    def work(self) -> dict[str, dict[str, float]]:
        """Tokens, and operations or bytes, by phase."""
        shape, way, rows = self.shape, self.way, self.rows
        sizes = self.sizes
        reused = sizes.micro_batch >= sizes.batch  # ppo/experience.py keeps the first forward
        sampled, through = sizes.batch * sizes.new_tokens, sum(rows.lengths)
        whole = [n + sizes.new_tokens for n in self.lengths]
        size = 2 if self.precision == "bf16" else 4
        return {
            "generation": {
                "tokens": sampled,
                "bytes": model_costs.generation_bytes(shape, way, self.lengths, sizes.new_tokens, size),
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
    """Seconds of each phase, an entry an iteration, and its most GiB; a GPU is waited for at both ends."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.found: dict[str, list[float]] = defaultdict(list)
        self.gib: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds one."""
        on_gpu = self.device.type == "cuda"
        synchronize(self.device)
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)
        began = time.perf_counter()
        yield
        synchronize(self.device)
        self.found[name].append(time.perf_counter() - began)
        if on_gpu:
            self.gib[name] = max(self.gib.get(name, 0.0), torch.cuda.max_memory_allocated(self.device) / GIB)


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
        make_estimator(ours.config)(rollouts, ours.config.algorithm.init_kl_coef)
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
