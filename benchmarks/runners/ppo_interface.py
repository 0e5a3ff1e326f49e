"""The interface of all PPO runners: the spec they read, clocks and memory, and the result they write.

A runner is `python benchmarks/runners/NAME.py SPEC.json RESULT.json`, one process on one thread.
Import this module before torch: `interface` sets the thread count and keeps Hugging Face off the network.
"""

from interface import parse_paths  # isort: skip  (before torch)

import json
import math
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Clock", "Memory", "PPOSpec", "Rollout", "parse_paths", "read_rollouts", "read_spec", "write_result"]

# the factor whose rows and inner width count, by the name of the operation; the result's last axis is the third number
FACTOR = {"mm": 0, "bmm": 0, "addmm": 1, "addmm_": 1, "baddbmm": 1, "linear": 0, "_linear_pointwise": 0}


@dataclass(frozen=True)
class PPOSpec:
    """One run. The same fields for every contender; `variant` and `micro_batch` are the contender's own."""

    policy: str
    "folder of the causal model that policy and reference start from"
    critic: str
    "folder of the one-label sequence classifier that a critic of its own starts from: its head, at every token"
    reward_model: str
    "folder of the one-label sequence classifier whose logit at the last token is the score"
    value_head: str
    "safetensors of a value head on the policy's trunk: 0.weight, 0.bias, 2.weight, 2.bias, a ReLU between"
    rollouts: str
    "JSONL of prompt_ids, reply_ids and score; iteration i trains lines [i * batch, (i + 1) * batch)"
    replay: bool
    "train on the file's replies and scores instead of sampling and scoring"
    variant: str
    micro_batch: int
    "rows of one forward and backward; a minibatch is accumulated from them"
    precision: str
    iterations: int
    "warm-up included"
    orders: list[list[list[int]]]
    "[iteration][epoch] -> permutation of the batch's rows; minibatches are consecutive slices of it"
    num_layers_unfrozen: int = -1
    "of a shared trunk; -1 trains everything"
    warmup_iterations: int = 1
    batch: int = 16
    "rollouts an iteration"
    epochs: int = 4
    minibatches: int = 1
    "optimizer updates an epoch"
    new_tokens: int = 48
    learning_rate: float = 1e-4
    adam_epsilon: float = 1e-8
    clip: float = 0.2
    value_clip: float = 0.2
    value_coef: float = 0.1
    kl_coef: float = 0.05
    gamma: float = 1.0
    lam: float = 0.95
    temperature: float = 1.0
    seed: int = 0

    @property
    def updates(self) -> int:
        """Optimizer updates of the whole run."""
        return self.iterations * self.epochs * self.minibatches

    @property
    def minibatch(self) -> int:
        """Rows of an optimizer update."""
        return self.batch // self.minibatches


def read_spec(path: str | Path) -> PPOSpec:
    """The spec of a run. Raises TypeError on a key it does not know, ValueError on a value that makes no sense."""
    spec = PPOSpec(**json.loads(Path(path).read_text()))
    if not 1 <= spec.warmup_iterations < spec.iterations:
        raise ValueError(f"warmup_iterations={spec.warmup_iterations} must be in 1..{spec.iterations - 1}")
    if spec.precision not in ("bf16", "fp32"):
        raise ValueError(f"precision={spec.precision!r} must be bf16 or fp32")
    if spec.batch % spec.minibatches or spec.minibatch % spec.micro_batch:
        raise ValueError(f"batch={spec.batch} does not split into {spec.minibatches} minibatches of {spec.micro_batch}")
    if len(spec.orders) != spec.iterations or any(len(epochs) != spec.epochs for epochs in spec.orders):
        raise ValueError("orders must hold a permutation for each epoch of each iteration")
    return spec


@dataclass(frozen=True)
class Rollout:
    """A line of the file; reply and score are used where the run replays."""

    prompt_ids: list[int]
    reply_ids: list[int]
    score: float


def read_rollouts(spec: PPOSpec) -> list[list[Rollout]]:
    """The rollouts of each iteration."""
    with open(spec.rollouts, encoding="utf-8") as lines:
        rows = [Rollout(**json.loads(line)) for line in lines][: spec.iterations * spec.batch]
    assert len(rows) == spec.iterations * spec.batch, "too few lines for so many iterations"
    return [rows[start : start + spec.batch] for start in range(0, len(rows), spec.batch)]


def resident_mib(field: str) -> float:
    """VmRSS or VmHWM of this process; where there is no /proc, the process's peak."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return next(int(line.split()[1]) / 1024 for line in status.read_text().splitlines() if line.startswith(field))


class Memory:
    """Peak resident memory of training above what the loaded models take.

    above = peak while training - resident before any model was loaded - bytes of all weights. The weights are counted
    rather than measured, since a mapped file is resident only from its first use on. The peak (VmHWM, which is what
    ru_maxrss reads) starts anew once models are loaded: loading may take more for a moment, which is not compared.
    Make it after all imports, the lazy ones as well: modules are not what is compared either.
    """

    def __init__(self) -> None:
        self.before, self.models = resident_mib("VmRSS"), 0.0

    def loaded(self, models: Iterable[torch.nn.Module]) -> None:
        """All weights are in memory; storage that models share counts once."""
        weights = [tensor for model in models for tensor in (*model.parameters(), *model.buffers())]
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in weights}
        self.models = sum(storages.values()) / 2**20
        if Path("/proc/self/clear_refs").exists():
            Path("/proc/self/clear_refs").write_text("5")

    def result(self) -> dict[str, float]:
        """MiB."""
        peak = resident_mib("VmHWM")
        above = peak - self.before - self.models
        return {"before_models": self.before, "models": self.models, "peak": peak, "above_models": above}


class CountProducts(TorchDispatchMode):
    """Operations of matrix products, counted as they run between `__enter__` and `__exit__`, whoever calls.

    Two a multiplication. Attention's fused kernels do not count.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(
        self, operation: Any, types: Sequence[type], arguments: tuple = (), named: dict | None = None
    ) -> torch.Tensor:
        """Runs the operation."""
        found = operation(*arguments, **(named or {}))
        place = FACTOR.get(operation._overloadpacket.__name__)
        if place is not None:
            self.operations += 2 * math.prod(arguments[place].shape) * found.shape[-1]
        return found


class Clock:
    """CPU and wall seconds from the end of the warm-up to the end of the last iteration, also by phase.

    A timed function inside another one counts for the inner phase only.
    """

    def __init__(self, spec: PPOSpec, profile: bool = False, count: bool = False) -> None:
        self.spec, self.iteration, self.updates = spec, 0, 0
        self.profiler = torch.profiler.profile() if profile else None
        self.counter = CountProducts() if count else None
        self.cpu_seconds = self.wall_seconds = 0.0
        self.policy_losses: list[list[float]] = []
        self.value_losses: list[list[float]] = []
        self.phases: dict[str, float] = defaultdict(float)
        self._inner = [0.0]
        self._waiting: tuple[list, list] = ([], [])

    def timed(self, name: str | Callable[[], str], function: Callable) -> Callable:
        """The function, its seconds added to a phase; the phase may be decided at the call."""

        @wraps(function)
        def wrapped(*positional, **named):
            began = time.process_time()
            self._inner.append(0.0)
            try:
                return function(*positional, **named)
            finally:
                seconds, inner = time.process_time() - began, self._inner.pop()
                self._inner[-1] += seconds
                self.phases[name if isinstance(name, str) else name()] += seconds - inner

        return wrapped

    def add_losses(self, policy: torch.Tensor | None, value: torch.Tensor | None) -> None:
        """Losses of a micro-batch, each a mean over its tokens; kept as tensors until the update ends."""
        for kept, loss in zip(self._waiting, (policy, value), strict=True):
            if loss is not None:
                kept.append(loss.detach())

    def end_update(self, *ignored) -> None:
        """An optimizer step was taken: its losses are the means over its micro-batches, which are of one size."""
        self.count_update()
        for kept, losses in zip((self.policy_losses, self.value_losses), self._waiting, strict=True):
            assert losses, "an update without losses"
            kept.append([float(loss) for loss in losses])
            losses.clear()

    def count_update(self, *ignored) -> None:
        """An optimizer step was taken."""
        self.updates += 1

    def end_iteration(self) -> None:
        """Called after the last update of an iteration."""
        now = time.process_time(), time.perf_counter()
        self.iteration += 1
        if self.iteration == self.spec.warmup_iterations:
            self.start, self.updates_before = now, self.updates
            self.phases.clear()
            if self.profiler:
                self.profiler.start()
            if self.counter:
                self.counter.__enter__()
        if self.iteration == self.spec.iterations:
            self.cpu_seconds, self.wall_seconds = now[0] - self.start[0], now[1] - self.start[1]
            self.phases["rest"] = self.cpu_seconds - sum(self.phases.values())
            if self.counter:
                self.counter.__exit__(None, None, None)
            if self.profiler:
                self.profiler.stop()
                print(self.profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=18))


def write_result(
    path: str | Path, runner: str, spec: PPOSpec, clock: Clock, memory: Memory, packages: tuple[str, ...]
) -> None:
    """Write what the driver reads. Updates are those that were counted, and must be as many as the spec asks for."""
    assert clock.iteration == spec.iterations, f"{clock.iteration} iterations instead of {spec.iterations}"
    assert clock.updates == spec.updates, f"{clock.updates} optimizer updates instead of {spec.updates}"
    measured = read_rollouts(spec)[spec.warmup_iterations :]
    samples = sum(len(batch) for batch in measured)
    tokens = sum(len(row.prompt_ids) + spec.new_tokens for batch in measured for row in batch)
    result = {
        "runner": runner,
        "variant": spec.variant,
        "precision": spec.precision,
        "micro_batch": spec.micro_batch,
        "cpu_seconds": clock.cpu_seconds,
        "wall_seconds": clock.wall_seconds,
        "samples": samples,
        "tokens": tokens,
        "updates": clock.updates - clock.updates_before,
        "samples_per_cpu_second": samples / clock.cpu_seconds,
        "phases": dict(clock.phases),
        "memory_mib": memory.result(),
        "policy_losses": [sum(losses) / len(losses) for losses in clock.policy_losses],
        "value_losses": [sum(losses) / len(losses) for losses in clock.value_losses],
        "versions": {package: version(package) for package in ("torch", "transformers", *packages)},
    }
    if clock.counter:
        result["product_operations"] = clock.counter.operations
    Path(path).write_text(json.dumps(result, indent=1))
