"""Runs of experiments, launched as a user launches them on one rank and thread, and what they leave."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def launch(experiment: str, model: Path, output: Path, flags: Sequence[object], shown: bool = False) -> float:
    """CPU seconds of a run without checkpoints, from start to end, imports included; `shown`: what it prints."""
    words = [sys.executable, experiment, "--model", model, "--output", output, "--tracking", "none",
             "--save_updates", "-1", *flags]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    out = None if shown else subprocess.DEVNULL
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*map(str, words)], cwd=ROOT, env=environment, check=True, stdout=out)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def metrics_of(output: Path) -> list[dict[str, Any]]:
    """A run's metrics, a dict a line."""
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def rewards_of(lines: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The mean reward of the rollouts before each update."""
    return {str(line["step"]): line["reward/mean"] for line in lines if "reward/mean" in line}


def seconds_of(output: Path) -> float:
    """CPU seconds that a run wrote down: of training and evaluation."""
    return json.loads((output / "run.json").read_text())["cpu_seconds"]
