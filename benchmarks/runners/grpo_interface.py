"""The interface of the GRPO runners: the spec they read, and the result they write. Import it before torch."""

from ppo_interface import Clock, Memory  # isort: skip  (before torch)

import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

__all__ = ["Clock", "GRPOSpec", "Memory", "Positions", "Row", "read_batches", "read_spec", "write_result"]


@dataclass(frozen=True)
class GRPOSpec:
    """One run. The same fields for every contender; `variant` and `micro_batch` are the contender's own."""

    model: str
    "folder of the causal model that policy and reference start from"
    rollouts: str
    "JSONL of prompt_ids, reply_ids and score; iteration i trains lines [i * batch, (i + 1) * batch)"
    variant: str
    micro_batch: int
    "rows of one forward and backward"
    precision: str
    iterations: int
    "warm-up included"
    warmup_iterations: int = 1
    batch: int = 16
    "rows an iteration, and an update"
    num_generations: int = 4
    "a group's rows, in succession"
    epochs: int = 1
    "updates an iteration"
    max_new_tokens: int = 96
    kl_coef: float = 0.0
    "of the k3 estimate in the loss; 0: no reference"
    clip: float = 0.2
    learning_rate: float = 1e-5
    adam_epsilon: float = 1e-8
    max_grad_norm: float = 1.0
    seed: int = 0

    @property
    def updates(self) -> int:
        """Of the whole run."""
        return self.iterations * self.epochs


@dataclass(frozen=True)
class Row:
    """A line of the file."""

    prompt_ids: list[int]
    reply_ids: list[int]
    score: float


@dataclass
class Positions:
    """Positions that forwards ran on in the measured iterations, also those without gradients."""

    real: int = 0
    "tokens"
    run: int = 0
    "positions of the layers, padding included"
    head: int = 0
    "positions at which logits were computed"

    def add(self, real: int, run: int, head: int) -> None:
        """A forward."""
        self.real, self.run, self.head = self.real + real, self.run + run, self.head + head


def read_spec(path: str | Path) -> GRPOSpec:
    """The spec of a run. Raises TypeError on a key it does not know, ValueError on a value that makes no sense."""
    spec = GRPOSpec(**json.loads(Path(path).read_text()))
    if not 1 <= spec.warmup_iterations < spec.iterations:
        raise ValueError(f"warmup_iterations={spec.warmup_iterations} must be in 1..{spec.iterations - 1}")
    if spec.batch % spec.micro_batch or spec.batch % spec.num_generations:
        raise ValueError(f"batch={spec.batch}: {spec.micro_batch} rows or groups of {spec.num_generations} do not fit")
    return spec


def read_batches(spec: GRPOSpec) -> list[list[Row]]:
    """The rows of each iteration."""
    with open(spec.rollouts, encoding="utf-8") as lines:
        rows = [Row(**json.loads(line)) for line in lines][: spec.iterations * spec.batch]
    assert len(rows) == spec.iterations * spec.batch, "too few lines for so many iterations"
    return [rows[start : start + spec.batch] for start in range(0, len(rows), spec.batch)]


def write_result(
    path: str | Path, runner: str, spec: GRPOSpec, clock: Clock, memory: Memory, positions: Positions,
    packages: tuple[str, ...],
) -> None:  # fmt: skip
    """Write what the driver reads. Updates are those that were counted, and must be as many as the spec asks for."""
    assert clock.iteration == spec.iterations, f"{clock.iteration} iterations instead of {spec.iterations}"
    assert clock.updates == spec.updates, f"{clock.updates} optimizer updates instead of {spec.updates}"
    measured = read_batches(spec)[spec.warmup_iterations :]
    samples = sum(len(batch) for batch in measured)
    result = {
        "runner": runner,
        "variant": spec.variant,
        "precision": spec.precision,
        "micro_batch": spec.micro_batch,
        "cpu_seconds": clock.cpu_seconds,
        "wall_seconds": clock.wall_seconds,
        "samples": samples,
        "tokens": sum(len(row.prompt_ids) + len(row.reply_ids) for batch in measured for row in batch),
        "updates": clock.updates - clock.updates_before,
        "samples_per_cpu_second": samples / clock.cpu_seconds,
        "phases": dict(clock.phases),
        "memory_mib": memory.result(),
        "positions": vars(positions),
        "losses": [sum(losses) for losses in clock.policy_losses],
        "versions": {package: version(package) for package in ("torch", "transformers", *packages)},
    }
    if clock.counter:
        result["product_operations"] = clock.counter.operations
    Path(path).write_text(json.dumps(result, indent=1))
