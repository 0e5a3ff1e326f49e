"""A short run of GRPO against the scorer, and what it does to score and monitors on other prompts than its own."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lmgym.apps.audit.attack_pool import LENGTH, Pool, ScoreBook, make_pool
from lmgym.apps.audit.recorded import Sample
from lmgym.errors import RunStopped
from lmgym.runs.files import write_lines
from lmgym.statistics import Estimate, mean
from lmgym.text import messages

REPLIES, GROUP = 64, 8
ADDED = 8  # best replies of the trained policy that join the pool of each prompt


@dataclass(frozen=True)
class Training:
    """The change by GRPO of the mean reply: by scorer in its spreads, LENGTH in words; over prompts."""

    updates: int
    change: Mapping[str, Estimate]


def train_against(
    scorer: str, policy: str, samples: Sequence[Sample], updates: int, flags: Mapping[str, object], folder: Path
) -> str:
    """The folder of the policy after so many updates against the scorer, by `lmgym train grpo`.

    Raises RunStopped with the end of its output if the run fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    prompts, run = folder / "prompts.jsonl", folder / "grpo"
    write_lines(prompts, [{"prompt": messages(sample.conversation)} for sample in samples])
    given: dict[str, object] = {
        "model": policy, "prompts": prompts, "eval_size": 1, "scorers": f"score={scorer}", "output": run,
        "max_updates": updates, "num_rollouts": REPLIES, "num_generations": GROUP, "global_batch": REPLIES,
        "micro_batch": GROUP, "init_kl_coef": 0, "target": "none", "missing_eos_penalty": 0, "num_layers_unfrozen": -1,
        "eval_updates": updates, "epochs": 10_000, "tracking": "none", **flags,
    }  # fmt: skip
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "lmgym", "train", "grpo", "hh_harmless", *words]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    (folder / "grpo.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode:
        last = " ".join((done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-2:])
        last = last.removeprefix("error: ")
        raise RunStopped(
            f"GRPO ended with code {done.returncode}: {last}; its output: {folder / 'grpo.log'}", "failed", 1
        )
    return str(run / "model")


def compare_training(
    book: ScoreBook, pool: Pool, trained: Sequence[Sample], prompts: Sequence[int], updates: int
) -> tuple[Pool, Training]:
    """(the pool with the trained policy's best replies, the change on these prompts)."""
    after = make_pool(book, trained)
    places = {sample.conversation: i for i, sample in enumerate(after.samples)}
    both = [(i, places[pool.samples[i].conversation]) for i in prompts if pool.samples[i].conversation in places]
    spreads = pool.spreads
    change = {
        name: mean([(after.scores[name][j].mean() - pool.scores[name][i].mean()) / spreads[name] for i, j in both])
        for name in pool.scores
    }
    change[LENGTH] = mean([_words(after.samples[j]) - _words(pool.samples[i]) for i, j in both])
    samples = [_joined(book, sample, after, places) for sample in pool.samples]
    return make_pool(book, samples), Training(updates, change)


def _words(sample: Sample) -> float:
    return float(np.mean([len(reply.split()) for reply in sample.replies]))


def _joined(book: ScoreBook, sample: Sample, after: Pool, places: Mapping) -> Sample:
    if (place := places.get(sample.conversation)) is None:
        return sample
    best = np.argsort(-after.scores["score"][place], kind="stable")[:ADDED]
    return replace(sample, replies=(*sample.replies, *(after.samples[place].replies[i] for i in best)))
