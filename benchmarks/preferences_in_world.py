"""Preferences without rewards in the simulated world: DPO on its pairs, KTO on its logs, beside PPO and the best of 4.

    for s in 0 1 2; do lmgym demo --seed $s --output outputs/preferences/$s; done
    .venv/bin/python benchmarks/preferences_in_world.py --demos outputs/preferences --worlds 0 1 2

Each world has the demo's policy (SFT), scorer and PPO. DPO, KTO and iterative DPO begin at the SFT policy with the
settings below, which were fixed before anything was measured. All policies reply to the same prompts of held-out users
with the same random numbers; the figure is the hidden utility of the replies, for average tastes, which nothing was
trained on. Intervals of differences resample prompts.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import tables
import torch
from shared import ROOT, describe_machine, write_result

from lmgym.apps.lab.pool import held_out_texts
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling
from lmgym.messages import from_transcript
from lmgym.models.forward.policies import PolicyModel, load_policy
from lmgym.models.loading import load_tokenizer
from lmgym.scoring.named_scorers import load_scorer
from lmgym.text import Conversation, Replies, render_all, tokenize_texts
from preferences.objectives import ReplyModel
from preferences.probes import Forwards

PROMPTS, SAMPLES, BEST_OF = 400, 8, 4
SHARED = [
    "--max_length", "128", "--precision", "fp32", "--learning_rate", "1e-4", "--beta", "0.1", "--tracking", "none",
    "--save_updates", "-1",
]  # fmt: skip
RUNS = {
    "DPO": ["dpo", "--dataset", "{demo}/world/pairs.parquet", "--global_batch", "32", "--micro_batch", "16"],
    "KTO": ["kto_thumbs", "--dataset", "{demo}/world/logs.parquet", "--max_rows", "20000", "--global_batch", "64",
            "--micro_batch", "32"],
    "iterative DPO": [
        "iterative_dpo", "--prompts", "{demo}/world/pairs.parquet", "--scorers", "demo={demo}/scorer/model",
        "--global_batch", "32", "--micro_batch", "16", "--prompts_per_round", "128", "--max_new_tokens", "32",
        "--max_updates", "64",
    ],
}  # fmt: skip


def train(demo: Path, name: str) -> tuple[Path, float]:
    """(the policy's folder, CPU seconds of the run); a run that is done is not repeated."""
    output = demo / name.lower().replace(" ", "_")
    experiment, *flags = [word.format(demo=demo) for word in RUNS[name]]
    if not (output / "model").is_dir():
        command = [sys.executable, str(ROOT / f"preferences/experiments/{experiment}.py"), "--model",
                   str(demo / "policy/model"), *flags, *SHARED, "--output", str(output)]  # fmt: skip
        subprocess.run(command, check=True)
    return output / "model", json.loads((output / "run.json").read_text())["cpu_seconds"]


def held_out_prompts(demo: Path) -> list[Conversation]:
    """Prompts of users that no training saw."""
    return [from_transcript(text) for text in held_out_texts(demo / "world", PROMPTS)]


def measure(policy: Path, start: ReplyModel, prompts: list[Conversation], world: int, scorer) -> dict:
    """Hidden utility of one reply [prompts], of the best of 4 by the scorer, KL to the start, tokens."""
    tokenizer = load_tokenizer(str(policy))
    model = load_policy(str(policy), tokenizer).eval()
    ids = tokenize_texts(tokenizer, render_all(tokenizer, prompts))
    replies = LocalGenerator(model, tokenizer, 256).generate(ids, SAMPLES, Sampling(32, seed=1))
    owners = [prompt for prompt in prompts for _ in range(SAMPLES)]
    texts = [one.text.strip() for own in replies for one in own]
    utility = load_scorer(f"world:{world}").score(owners, texts).numpy().reshape(-1, SAMPLES)
    proxy = np.asarray(scorer.score(owners, texts)).reshape(-1, SAMPLES // BEST_OF, BEST_OF)
    best = np.take_along_axis(utility.reshape(proxy.shape), proxy.argmax(2)[:, :, None], 2).mean((1, 2))
    rows = [
        Replies(p[:-1], [[p[-1], *one.ids[:-1]] for one in own], ends=tuple(one.ids[-1] for one in own))
        for p, own in zip(ids, replies, strict=True)
    ]
    of_start = Forwards(rows, start, 4096).sums(start.policy, torch.device("cpu"))
    own_sums = torch.tensor([sum(one.logprobs) for own in replies for one in own], dtype=torch.float64)
    return {
        "utility": utility.mean(1).round(4).tolist(),
        "best": best.round(4).tolist(),
        "kl": float((own_sums - of_start).mean()),
        "tokens": float(np.mean([len(one.ids) for own in replies for one in own])),
        "openings": len({tuple(text.split()[:3]) for text in texts}) / len(texts),
    }


def run_world(demo: Path, world: int) -> dict:
    """Every policy's figures in a world."""
    folders = {"SFT": (demo / "policy/model", None), "PPO": (demo / "ppo/model", None)}
    folders |= {name: train(demo, name) for name in RUNS}
    tokenizer = load_tokenizer(str(demo / "policy/model"))
    start = ReplyModel(PolicyModel(load_policy(str(demo / "policy/model"), tokenizer)).eval(), tokenizer.eos_token_id)
    prompts, scorer = held_out_prompts(demo), load_scorer(str(demo / "scorer/model"))
    found = {name: measure(folder, start, prompts, world, scorer) for name, (folder, _) in folders.items()}
    for name, (_, cpu) in folders.items():
        found[name]["training_cpu_seconds"] = cpu
    return {"world": world, "policies": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--demos", type=Path, required=True, help="a folder with an output of `lmgym demo` a seed")
    parser.add_argument("--worlds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/preferences_in_world.json")
    arguments = parser.parse_args()
    machine, worlds = describe_machine(), []
    for world in arguments.worlds:
        began = time.perf_counter()
        worlds.append(run_world(arguments.demos / str(world), world))
        worlds[-1]["minutes"] = (time.perf_counter() - began) / 60
        settings = {"prompts": PROMPTS, "samples": SAMPLES, "flags": SHARED, "runs": RUNS}
        result = {"settings": settings, "machine": machine, "worlds": worlds}
        write_result(arguments.output, result, "world", "rows", "method", "sampler")
        print("\n".join(tables.preferences(result)), flush=True)


if __name__ == "__main__":
    main()
