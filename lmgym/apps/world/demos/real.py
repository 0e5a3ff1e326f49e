"""`lmgym demo --real`: a real model learns to help, from 215 pairs of replies to everyday questions.

The steps: SmolLM2-135M-Instruct; SFT on all replies of the pairs, good and bad, as if they were an assistant's log; a
scorer trained on the pairs; GRPO against the scorer; replies to 40 other questions before GRPO and after.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lmgym.apps.world.demos.results import show_report, show_table
from lmgym.apps.world.demos.samples import MAX_NEW_TOKENS, TEMPERATURE
from lmgym.apps.world.demos.steps import CompletedSteps, DemoStep, deepspeed, run_steps
from lmgym.config import SEED
from lmgym.console import say
from lmgym.report.status_line import StepTimes
from lmgym.statistics import Estimate, mean, paired_difference

MODEL = Path("outputs/models/smollm2-135m")
DATA = Path(__file__).parent / "data"  # a link to examples/data
REPLIES, PAIRS, HELD_OUT = DATA / "replies.jsonl", DATA / "helpful_pairs.jsonl", DATA / "helpful_held_out.jsonl"
ITERATIONS, UPDATES = 8, 4  # of GRPO, and of an iteration
ABOUT = {  # by step: what it does, and about its seconds on 2 idle cores of a Xeon with AVX-512
    "model": ("get SmolLM2-135M-Instruct", 30.0),
    "sft": ("train it on 430 replies, good and bad (SFT, LoRA)", 90.0),
    "scorer": ("train a scorer on 215 pairs (LoRA)", 90.0),
    "policy": ("optimise the model against the scorer (GRPO)", 220.0),
    "before": ("4 replies to each of 40 held-out questions, before GRPO", 20.0),
    "after": ("the same after GRPO", 20.0),
}
WHEN = ("before", "after")
MEASURES = {
    "score": "score, which was optimised",
    "finished": f"share that end by themselves within {MAX_NEW_TOKENS} tokens",
    "words": "words per reply",
}
SHOWN = slice(None, None, 8)  # questions whose replies are printed


def run_real_demo(output: str, seed: int, iterations: int = ITERATIONS) -> int:
    """Runs all steps and prints the results. Returns 0, or the exit code of the step that failed."""
    SEED.check("seed", seed)
    began = time.perf_counter()
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    completed = CompletedSteps(folder / "demo.json")
    times = StepTimes([seconds for _, seconds in ABOUT.values()])
    say(f"commands and output of the steps: {folder / 'logs'}")
    if code := run_steps(_steps(folder, seed, iterations), ABOUT, folder, completed, times):
        return code
    completed.note(show_results(folder))
    say(f"demo: {time.perf_counter() - began:.0f} s; all results are in {folder.resolve()}")
    show_report(folder / "policy")
    return 0


def _steps(folder: Path, seed: int, iterations: int) -> list[DemoStep]:
    scorer = folder / "scorer"

    def step(name: str, done: Path, *words: object) -> DemoStep:
        return DemoStep(name, [str(word) for word in words], done)

    def train(name: str, experiment: str, model: Path, *flags: object) -> DemoStep:
        common = ("--model", model, "--seed", seed, "--tracking", "none", "--save_updates", -1)
        words = (*deepspeed(experiment), *common, "--output", folder / name, *flags)
        return step(name, folder / name / "model/config.json", *words)

    def sample(name: str, model: Path) -> DemoStep:
        done = folder / f"{name}.jsonl"
        words = (sys.executable, "-m", "lmgym.apps.world.demos.samples", model, HELD_OUT, scorer / "model", done, seed)
        return step(name, done, *words)

    updates, learned = UPDATES * iterations, folder / "sft/model"
    lora = ("--lora_rank", 16, "--global_batch", 8, "--micro_batch", 4, "--epochs", 1)
    return [
        step("model", MODEL / "config.json", Path(sys.executable).parent / "lmgym", "get", "smollm2-135m"),
        train("sft", "chat", MODEL, "--dataset", REPLIES, *lora, "--learning_rate", 3e-4, "--merge_adapter"),
        train(
            "scorer", "hh_pairwise", MODEL,
            *("--dataset", PAIRS, "--eval_dataset", HELD_OUT, *lora, "--learning_rate", 2e-4),
        ),
        train(
            "policy", "hh_harmless", learned,
            *("--method", "grpo", "--scorers", f"helpful={scorer / 'model'}", "--learning_rate", 3e-4),
            *("--prompts", PAIRS, "--eval_prompts", HELD_OUT, "--max_updates", updates, "--eval_updates", updates // 2),
            *("--num_rollouts", 128, "--num_generations", 8, "--global_batch", 64, "--micro_batch", 16),
            *("--ppo_epochs", 2, "--max_new_tokens", MAX_NEW_TOKENS, "--temperature", TEMPERATURE),
        ),
        sample("before", learned),
        sample("after", folder / "policy/model"),
    ]  # fmt: skip


def show_results(folder: Path) -> dict[str, Any]:
    """Prints the scorer's accuracy, and replies before and after with their figures; returns the figures."""
    found = json.loads((folder / "scorer/evaluation.json").read_text())["metrics"]
    accuracy = Estimate(found["accuracy"], found.get("accuracy_low"), found.get("accuracy_high"), 40, 80)
    table = [("the scorer", f"{accuracy:.3f}"), ("length alone: the longer wins", f"{found['length_accuracy']:.3f}")]
    show_table("Accuracy on 80 held-out pairs", ("", "accuracy (95% interval)"), table)

    rows = {name: _read(folder / f"{name}.jsonl") for name in WHEN}
    figures = {name: measure(of) for name, of in rows.items()}
    changes = {name: paired_difference(figures["before"][name], figures["after"][name])[0] for name in MEASURES}
    show_table(
        "Replies to 40 held-out questions", ("", *WHEN, "change (95% interval)"),
        [
            (label, *(f"{mean(of[name]).value:.2f}" for of in figures.values()), f"{changes[name]:+.2f}")
            for name, label in MEASURES.items()
        ],
    )  # fmt: skip
    kl = _read(folder / "policy/metrics.jsonl")[-1]["kl/reference"]
    say(f"KL to the model before GRPO: {kl:.2f} nats per reply")
    for of_question in [*zip(*rows.values(), strict=True)][SHOWN]:
        replies = zip(WHEN, of_question, strict=True)
        shown = [(label, row["replies"][0], f"{row['scores'][0]:.2f}") for label, row in replies]
        show_table(of_question[0]["prompt"], ("", "reply", "score"), shown, text=2)
    values = {name: {key: mean(of_one).value for key, of_one in of.items()} for name, of in figures.items()}
    return values | {"kl": kl} | {name: change.named("change") for name, change in changes.items()}


def measure(rows: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """MEASURES of each row, a mean over its replies."""
    words = [[len(reply.split()) for reply in row["replies"]] for row in rows]
    of_replies = {
        "score": [row["scores"] for row in rows],
        "finished": [row["finished"] for row in rows],
        "words": words,
    }
    return {name: np.mean(values, axis=1).tolist() for name, values in of_replies.items()}


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
