"""PPO's family on vLLM beside our own engine: what is learned, and tokens a CPU second. Needs `lmgym engine setup`.

    .venv/bin/python benchmarks/engines.py walks     # three seeds of random walks with each engine
    .venv/bin/python benchmarks/engines.py friendly  # GRPO on SmolLM2 with adapters and a reward of ten lines
    .venv/bin/python benchmarks/engines.py tokens    # GRPO on SmolLM2, each engine and precision, with and without
                                                     # --async_rollouts 1

Writes benchmarks/results/engines.json after every run, and goes on with those that it lacks. Conditions, fixed before
any run: `walks` is ppo/experiments/randomwalks.py as it is, from a start of width 128 with 4 heads, which vLLM's build
for CPUs can run, with run seeds 0 to 2; passed if vLLM's mean is within the 95% interval (Student's t) of our engine's.
`friendly` is ppo/experiments/friendly_answers.py with LoRA 16 and a learning rate of 1e-3, seed 0. `tokens` trains all
weights, in iterations of 32 replies of up to 64 tokens; CPU seconds are those of all processes, the server's too, from
the end of the first iteration to that of the third.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from random_walks import optimality  # puts the repository's root before this folder
from shared import ROOT, describe_machine, metrics_of, write_result

from lmgym.environments import random_walks_model

RESULTS = ROOT / "benchmarks/results/engines.json"
SMOLLM = ROOT / "outputs/models/smollm2-135m"
STUDENT = 4.303  # 97.5% quantile of Student's t for three seeds
TICKS = os.sysconf("SC_CLK_TCK")
ENGINES: dict[str, Sequence[object]] = {
    "own": (),
    "vllm": ("--engine", "vllm"),
    "vllm, one ahead": ("--engine", "vllm", "--async_rollouts", 1),
}


class CPUSeconds:
    """CPU seconds of all processes that inherit a mark, up to now; one that has ended counts as last seen."""

    def __init__(self, mark: str) -> None:
        self.mark, self.seen = f"LMGYM_BENCHMARK={mark}".encode(), {}
        self.stopped = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self.stopped.wait(0.5):
            self.total()

    def total(self) -> float:
        """The sum."""
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark in (folder / "environ").read_bytes():
                    numbers = (folder / "stat").read_text().rpartition(")")[2].split()
                    self.seen[folder.name] = (int(numbers[11]) + int(numbers[12])) / TICKS
            except OSError:
                continue
        return sum(self.seen.values())


def launch(experiment: str, model: Path, output: Path, flags: Sequence[object]) -> list[dict[str, float]]:
    """A run on one thread a process; CPU and wall seconds at the end of each iteration."""
    mark = uuid.uuid4().hex
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "LMGYM_BENCHMARK": mark}
    words = [sys.executable, experiment, "--model", model, "--output", output, "--tracking", "none", *flags]
    counter, began, marks, lines = CPUSeconds(mark), time.monotonic(), [], 0
    with subprocess.Popen([*map(str, words)], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            time.sleep(0.2)
            path = output / "metrics.jsonl"
            found = path.read_text().count("rollout/trained_tokens") if path.exists() else 0
            if found > lines:
                lines = found
                marks.append({"iteration": found, "cpu": counter.total(), "wall": time.monotonic() - began})
    counter.stopped.set()
    if process.returncode:
        raise SystemExit(f"{experiment} ended with {process.returncode}")
    return [*marks, {"iteration": lines + 1, "cpu": counter.total(), "wall": time.monotonic() - began}]


def walks(engine: str, seed: int, folder: Path) -> dict[str, Any]:
    """A run on random walks, and its last policy's worth."""
    random_walks_model.WIDTH, random_walks_model.HEADS = 128, 4
    start, run = random_walks_model.make_start(folder / "start"), folder / f"{engine}_{seed}"
    marks = launch(
        "ppo/experiments/randomwalks.py", start, run, ["--seed", seed, "--save_updates", -1, *ENGINES[engine]]
    )
    gaps = [line["engine/sync_gap"] for line in metrics_of(run) if "engine/sync_gap" in line]
    found = {"seed": seed, **optimality(run / "model"), "cpu_seconds": marks[-1]["cpu"], "seconds": marks[-1]["wall"]}
    return found | ({"largest_sync_gap": max(gaps)} if gaps else {})


def friendly(engine: str, folder: Path) -> dict[str, Any]:
    """The reward on held-out prompts over the updates."""
    flags = ["--lora_rank", 16, "--learning_rate", 1e-3, "--num_layers_unfrozen", -1, "--save_updates", -1]
    run = folder / engine
    marks = launch("ppo/experiments/friendly_answers.py", SMOLLM, run, [*flags, *ENGINES[engine]])
    lines = metrics_of(run)
    curve = {str(line["step"]): line["eval/reward/mean"] for line in lines if "eval/reward/mean" in line}
    gaps = [line["sampler/kl"] for line in lines if "sampler/kl" in line]
    found = {"eval_reward": curve, "largest_sampler_kl": max(map(abs, gaps)), "kl": lines[-1].get("kl/reference")}
    return found | {"cpu_seconds": marks[-1]["cpu"], "seconds": marks[-1]["wall"]}


def tokens(engine: str, precision: str, folder: Path) -> dict[str, Any]:
    """Tokens that four iterations sampled, less the first, by CPU second and by second."""
    flags = ["--precision", precision, "--num_rollouts", 32, "--global_batch", 32, "--ppo_epochs", 1,
             "--max_updates", 4, "--max_new_tokens", 64, "--eval_size", 4, "--eval_updates", 100,
             "--num_layers_unfrozen", -1, "--save_updates", -1, "--learning_rate", 1e-5]  # fmt: skip
    run = folder / f"{engine}_{precision}"
    marks = launch("ppo/experiments/friendly_answers.py", SMOLLM, run, [*flags, *ENGINES[engine]])
    lines = [line for line in metrics_of(run) if "rollout/reply_tokens" in line]
    sampled = sum(32 * line["rollout/reply_tokens"] for line in lines[1:3])
    times = {name: (lines[1][name] + lines[2][name]) / 2 for name in lines[1] if name.startswith("time/")}
    cpu, wall = (marks[2][name] - marks[0][name] for name in ("cpu", "wall"))
    return {"engine": engine, "precision": precision, "tokens_per_cpu_second": sampled / cpu,
            "tokens_per_second": sampled / wall, "gap": lines[1]["sampler/kl"], **times}  # fmt: skip


def main() -> None:
    """Runs the parts, prints and writes what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=("walks", "friendly", "tokens"))
    parts = parser.parse_args().parts
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}

    def measure(part: str, key: str, work: Callable[[], dict[str, Any]]) -> None:
        rows = found.setdefault(part, {"machine": describe_machine(), "rows": {}})["rows"]
        if key in rows:
            return
        row = rows[key] = work() | {"cpu": describe_machine()["cpu"]}  # runs may go on on another machine
        write_result(RESULTS, found, "method", "sampler")
        print(part, key, {name: value for name, value in row.items() if not name.startswith("time/")}, flush=True)

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for seed, engine in product((0, 1, 2), ("own", "vllm")) if "walks" in parts else ():
            measure("walks", f"{engine}, seed {seed}", partial(walks, engine, seed, folder))
        for engine in ("own", "vllm") if "friendly" in parts else ():
            measure("friendly", engine, partial(friendly, engine, folder))
        for precision, engine in (
            product(("fp32", "bf16"), ("own", "vllm", "vllm, one ahead")) if "tokens" in parts else ()
        ):
            measure("tokens", f"{engine}, {precision}", partial(tokens, engine, precision, folder))
    if "walks" in parts:
        rows = found["walks"]["rows"]
        for engine in ("own", "vllm"):
            sampled = np.array([rows[f"{engine}, seed {seed}"]["sampled"] for seed in (0, 1, 2)])
            half = STUDENT * sampled.std(ddof=1) / 3**0.5
            print(f"{engine}: {sampled.mean():.4f} ({sampled.mean() - half:.4f} to {sampled.mean() + half:.4f})")


if __name__ == "__main__":
    main()
