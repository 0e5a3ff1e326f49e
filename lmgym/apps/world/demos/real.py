"""`lmgym demo --real`: a real model in English, best of 8 and a reward of ten lines, before and after training.

The steps: SmolLM2-135M-Instruct; 8 replies to each held-out question; the model optimised against the reward by GRPO on
other questions; 8 replies again. The best of 8 is chosen by the reward itself: it is the ceiling of what choosing gets.
"""

import inspect
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lmgym.apps.world.demos.prompts import write_prompts
from lmgym.apps.world.demos.results import diversity_of, show_report, show_table
from lmgym.apps.world.demos.steps import CompletedSteps, DemoStep, deepspeed, run_steps
from lmgym.config import SEED
from lmgym.console import say
from lmgym.report.status_line import StepTimes

UPDATES = 18
MODEL = Path("outputs/models/smollm2-135m")
ABOUT = {  # by step: what it does, and about its seconds on 2 idle cores of a Xeon with AVX-512
    "model": ("get SmolLM2-135M-Instruct", 30.0),
    "before": ("sample 8 replies to each of 40 questions", 60.0),
    "training": ("optimise it against the reward (GRPO)", 200.0),
    "after": ("sample 8 replies again", 60.0),
}
SHOWN = slice(None, None, 13)  # questions whose replies are printed, of several kinds


def run_real_demo(output: str, seed: int, updates: int = UPDATES) -> int:
    """Runs all steps and prints the results. Returns 0, or the exit code of the step that failed."""
    from lmgym.scoring import friendly_answers

    SEED.check("seed", seed)
    began = time.perf_counter()
    folder = Path(output)
    write_prompts(folder)
    completed = CompletedSteps(folder / "demo.json")
    times = StepTimes([seconds for _, seconds in ABOUT.values()])
    say(f"commands and output of the steps: {folder / 'logs'}")
    say(f"the reward, in {friendly_answers.__file__}:")
    for line in inspect.getsource(friendly_answers.friendly_answers).splitlines():
        say(f"    {line}")
    if code := run_steps(_steps(folder, seed, updates), ABOUT, folder, completed, times):
        return code
    completed.note(show_results(folder))
    say(f"demo: {time.perf_counter() - began:.0f} s; all results are in {folder.resolve()}")
    show_report(folder / "training")
    return 0


def _steps(folder: Path, seed: int, updates: int) -> list[DemoStep]:
    training, held_out = folder / "training", folder / "held_out.jsonl"

    def step(name: str, done: Path, *words: object) -> DemoStep:
        return DemoStep(name, [str(word) for word in words], done)

    def sample(name: str, model: Path) -> DemoStep:
        done = folder / f"{name}.jsonl"
        return step(name, done, sys.executable, "-m", "lmgym.apps.world.demos.samples", model, held_out, done, seed)

    return [
        step("model", MODEL / "config.json", Path(sys.executable).parent / "lmgym", "get", "smollm2-135m"),
        sample("before", MODEL),
        step(
            "training",
            training / "model/config.json",
            *deepspeed("friendly_answers"),
            "--model",
            MODEL,
            "--prompts",
            folder / "prompts.jsonl",
            *("--eval_prompts", held_out, "--eval_updates", updates, "--save_updates", -1, "--seed", seed),
            *("--output", training, "--max_updates", updates, "--tracking", "none"),
        ),
        sample("after", training / "model"),
    ]


def show_results(folder: Path) -> dict[str, Any]:
    """Prints rewards and diversity before and after training, and replies; returns the figures."""
    rows = {when: _read(folder / f"{when}.jsonl") for when in ("before", "after")}
    figures = {when: measure(of) for when, of in rows.items()}
    table = [(name, *(f"{of[name]:.3f}" for of in figures.values())) for name in figures["before"]]
    show_table("Replies to 40 held-out questions", ("", "before", "after"), table)
    for before, after in zip(rows["before"][SHOWN], rows["after"][SHOWN], strict=True):
        shown = []
        for when, row in (("before", before), ("after", after)):
            best = int(np.argmax(row["rewards"]))
            shown += [
                (f"{when}: {what}", row["replies"][place], f"{row['rewards'][place]:.2f}")
                for what, place in (("first of 8", 0), ("best of 8", best))
            ]
        show_table(before["prompt"], ("", "reply", "reward"), shown, text=2)
    return figures


def measure(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The mean reward of a reply and of the best of 8 and the diversity of the first ones."""
    rewards = np.array([row["rewards"] for row in rows])
    best = rewards.max(axis=1)
    replies = [row["replies"][0] for row in rows]
    return {
        "reward of one reply": rewards.mean(),
        "reward of the best of 8": best.mean(),
        **diversity_of(replies),
    }


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
