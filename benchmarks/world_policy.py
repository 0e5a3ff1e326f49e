"""A policy from scratch for the simulated world: what it costs to train and how much of what it says is the language.

    .venv/bin/python benchmarks/world_policy.py        # writes benchmarks/results/world_policy.json

Two tokenizers of one world, words as whole tokens and pieces of words, each with a model of the same size trained by
`sft/experiments/chat.py`; then replies to what users of the evaluation sets said, of whom training saw none, sampled in
several ways and judged by lmgym/apps/world/checker.py. CPU seconds are those of the
training's process.
"""

import argparse
import datetime
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
from shared import ROOT, describe_machine, write_result

from lmgym.apps.world.checker import faults
from lmgym.apps.world.making import make_world, make_world_policy
from lmgym.apps.world.world import World
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling
from lmgym.messages import from_transcript
from lmgym.models.forward.policies import load_policy
from lmgym.models.loading import load_tokenizer
from lmgym.text import Conversation

REPLIES = 500
SAMPLINGS = ((1.0, 1.0), (1.0, 0.95), (0.8, 0.95))  # temperature, top-p
TRAIN = {
    "max_length": 128, "global_batch": 16, "micro_batch": 16, "learning_rate": "5e-3", "adam_beta2": 0.99,
    "weight_decay": 0.1, "epochs": 6, "precision": "fp32", "tracking": "none", "sample_prompts": 0,
    "save_updates": -1, "eval_size": 200, "resume": "never",
}  # fmt: skip


def main() -> None:
    """World, policies, figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default="outputs/benchmark_world_policy")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--pieces", type=int, default=384, help="of the tokenizer beside the words; 0: words alone")
    parser.add_argument("--output", default=str(ROOT / "benchmarks/results/world_policy.json"))
    given = parser.parse_args()
    machine = describe_machine()
    folder = Path(given.folder)
    shutil.rmtree(folder, ignore_errors=True)
    make_world(str(folder / "world"), given.rows, given.seed)
    found = {}
    for size in (None, given.pieces) if given.pieces else (None,):
        name = "words" if size is None else f"{size} pieces"
        start, policy = folder / f"start {name}", folder / f"policy {name}"
        make_world_policy(str(folder / "world"), str(start), pieces=size, seed=given.seed)
        cpu_seconds = train(start, policy, folder / "world/sft.parquet", given.seed)
        found[name] = {
            "cpu_seconds": round(cpu_seconds, 1),
            **json.loads((policy / "run.json").read_text())["data"],
            "parameters": json.loads((policy / "run.json").read_text())["parameters"],
            **json.loads((policy / "evaluation.json").read_text())["metrics"],
            **judge(policy / "model", folder / "world", given.seed),
        }
        print(json.dumps({name: found[name]}, indent=2), flush=True)
    record = {
        "date": datetime.date.today().isoformat(), "machine": machine, "rows": given.rows, "seed": given.seed,
        "training": TRAIN, "replies": REPLIES, "by_tokens": found,
    }  # fmt: skip
    write_result(Path(given.output), record, "world", "rows", "sampler", "method")


def train(start: Path, output: Path, data: Path, seed: int) -> float:
    """CPU seconds of the experiment from start to end, imports included."""
    words = [sys.executable, str(ROOT / "sft/experiments/chat.py"), "--model", str(start), "--dataset", str(data)]
    words += ["--output", str(output), "--seed", str(seed)]
    words += [word for name, value in TRAIN.items() for word in (f"--{name}", str(value))]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def judge(model: Path, world: Path, seed: int) -> dict[str, float]:
    """Shares of replies at temperature 1 that are accepted and distinct, and the same of the bots' own."""
    texts = pq.read_table(world / "gold_eval.parquet", columns=["text"])["text"].to_pylist()[:REPLIES]
    conversations = [without_reply(from_transcript(text)) for text in texts]
    tokenizer = load_tokenizer(str(model))
    generator = LocalGenerator(load_policy(str(model), tokenizer), tokenizer)
    grammar = World(seed).grammar
    logged = [from_transcript(text).turns[-1].text for text in texts]
    found: dict[str, float] = {
        "accepted_of_the_worlds_own_bots": sum(not faults(grammar, text) for text in logged) / len(logged),
        "distinct_of_the_worlds_own_bots": len(set(logged)) / len(logged),
    }
    for temperature, top_p in SAMPLINGS:
        sampling = Sampling(96, temperature, top_p=top_p, seed=seed)
        replies = [r[0] for r in generator.reply(conversations, 1, sampling)]
        how = f"at temperature {temperature}, top-p {top_p}"
        said = [reply.text.strip() for reply in replies]
        found |= {
            f"accepted {how}": sum(not faults(grammar, text) for text in said) / len(said),
            f"distinct {how}": len(set(said)) / len(said),
            f"ended {how}": sum(reply.finish_reason == "eos" for reply in replies) / len(replies),
        }
    return found


def without_reply(conversation: Conversation) -> Conversation:
    """The reply of the bot."""
    return Conversation(conversation.turns[:-1], conversation.persona)


if __name__ == "__main__":
    main()
