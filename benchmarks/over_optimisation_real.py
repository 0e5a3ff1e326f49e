"""Best of N of a real model against scorers of few labels: SmolLM2 as policy, gold, and proxies.

    lmgym get smollm2-135m
    .venv/bin/python benchmarks/over_optimisation_real.py    # two hours of one core; goes on where it was stopped

Gold is a scorer of all real pairs (hh-rlhf harmless). SmolLM2 replies twice to prompts of these pairs, gold decides
which reply wins, and proxies are trained on parts of these labels. One pool of replies to other prompts then gives the
best of N by each proxy, scored by gold. Gold is a scorer too: the figure says how far a proxy can be optimised before
another scorer disagrees, not what people would say. Fixed before any of it was run: sizes, seeds, settings below.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from shared import PAIRS_FILE, ROOT, describe_machine, write_result

from lmgym.apps.lab.curves import pool_points
from lmgym.apps.lab.pool import Pool, sample_replies, score_replies
from lmgym.data.records import read_records
from lmgym.generation.protocol import Sampling
from lmgym.text import Conversation, Turn, messages

PROMPTS, REPLIES, LABELLED, SIZES, SEEDS = 32, 64, 600, (75, 300, 600), (1, 2)
SAMPLING = Sampling(max_new_tokens=32, seed=1)
MOST_WORDS = 25
TRAIN = {
    "max_length": 256, "precision": "fp32", "lora_rank": 16, "learning_rate": "2e-4", "epochs": 1, "global_batch": 16,
    "micro_batch": 8, "eval_updates": 1000, "tracking": "none",
}  # fmt: skip


def train(model: Path, pairs: Path, output: Path, seed: int, eval_size: str) -> tuple[Path, float]:
    """(the scorer's folder, CPU seconds) of a run that is not repeated once it is finished."""
    if not (output / "model").is_dir():
        flags = [word for name, value in TRAIN.items() for word in (f"--{name}", str(value))]
        words = [sys.executable, str(ROOT / "reward_models/experiments/hh_pairwise.py"), "--model", str(model)]
        words += ["--dataset", str(pairs), "--eval_size", eval_size, "--seed", str(seed), "--output", str(output)]
        subprocess.run([*words, *flags], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return output / "model", json.loads((output / "run.json").read_text())["cpu_seconds"]


def short_prompts(number: int) -> list[Conversation]:
    """The first different questions of the real pairs, of at most MOST_WORDS words, that begin a conversation."""
    found: dict[str, None] = {}
    for record in read_records(str(PAIRS_FILE)):
        question = str(record.fields["chosen"]).partition("\n\nHuman:")[2].partition("\n\nAssistant:")[0].strip()
        if 3 <= len(question.split()) <= MOST_WORDS:
            found[question] = None
    if len(found) < number:
        raise SystemExit(f"{len(found)} short questions; needed: {number}")
    return [Conversation((Turn("user", question),)) for question in [*found][:number]]


def sample(model: Path, prompts: Sequence[Conversation], n: int, file: Path) -> list[list[str]]:
    """Replies, kept in a file."""
    if not file.is_file():
        file.write_text(json.dumps(sample_replies(str(model), prompts, n, SAMPLING, 32)))
    replies: list[list[str]] = json.loads(file.read_text())
    return replies


def scored(scorer: Path, prompts: Sequence[Conversation], replies: list[list[str]], file: Path) -> np.ndarray:
    """Scores [prompts, n], kept in a file."""
    if not file.is_file():
        np.save(file, score_replies(str(scorer), prompts, replies))
    return np.load(file).astype(np.float64)


def write_labels(prompts: Sequence[Conversation], replies: list[list[str]], gold: np.ndarray, file: Path) -> None:
    """Pairs in which the reply with the higher gold wins; equal replies make none."""
    with file.open("w") as lines:
        for prompt, (first, second), (one, other) in zip(prompts, replies, gold, strict=True):
            if first != second and one != other:
                chosen, rejected = (first, second) if one > other else (second, first)
                lines.write(json.dumps({"prompt": messages(prompt), "chosen": chosen, "rejected": rejected}) + "\n")


def main() -> None:
    """Gold, labels, proxies, pool."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=ROOT / "outputs/models/smollm2-135m")
    parser.add_argument("--folder", type=Path, default=ROOT / "outputs/over_optimisation_real")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/over_optimisation_real.json")
    arguments = parser.parse_args()
    folder, model = arguments.folder.resolve(), arguments.model.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    gold, seconds = train(model, PAIRS_FILE, folder / "gold", 0, "100")
    prompts = short_prompts(PROMPTS + LABELLED)
    asked, labelled = prompts[:PROMPTS], prompts[PROMPTS:]
    two = sample(model, labelled, 2, folder / "two.json")
    write_labels(labelled, two, scored(gold, labelled, two, folder / "two_gold.npy"), folder / "labels.jsonl")
    lines = (folder / "labels.jsonl").read_text().splitlines(keepends=True)
    pool = sample(model, asked, REPLIES, folder / "pool.json")
    of_gold = scored(gold, asked, pool, folder / "pool_gold.npy")
    words = np.array([[len(reply.split()) for reply in own] for own in pool], dtype=np.float64)
    found: dict[str, Any] = {"machine": describe_machine(), "labels": len(lines)}
    found["gold_std"] = float(of_gold.std())
    found["gold_accuracy"] = json.loads((gold.parent / "evaluation.json").read_text())["metrics"]["accuracy"]
    points = as_points(asked, pool, of_gold, words, of_gold)
    curves = [{"proxy": "gold", "seed": 0, "cpu_seconds": seconds, "points": points}]
    for size in SIZES:
        for seed in SEEDS:
            part = folder / f"labels_{size}.jsonl"
            part.write_text("".join(lines[:size]))
            scorer, seconds = train(model, part, folder / f"proxy_{size}_{seed}", seed, "16")
            scores = scored(scorer, asked, pool, folder / f"pool_{size}_{seed}.npy")
            points = as_points(asked, pool, of_gold, words, scores)
            curves.append({"proxy": str(size), "seed": seed, "cpu_seconds": seconds, "points": points})
            print(size, seed, [(p["at"], round(p["gold"], 3), round(p["reward"], 3)) for p in points], flush=True)
            write_result(arguments.output, found | {"curves": curves}, "lab", "rows", "sampler", "method")


def as_points(
    prompts: list[Conversation], replies: list[list[str]], gold: np.ndarray, words: np.ndarray, scores: np.ndarray
) -> list[dict[str, Any]]:
    """The best of 1, 2, 4, ... by scores."""
    return [asdict(point) for point in pool_points(Pool(prompts, replies, gold, words), scores)]


if __name__ == "__main__":
    main()
