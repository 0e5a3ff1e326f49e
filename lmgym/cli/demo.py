"""`make demo`: from nothing to a judged scorer, with the commands that a user would type."""

import json
import shlex
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

PAIRS, HELD_OUT = 2400, 400
MESSAGE = "hello! i want to talk about planets."
REPLIES = [
    "i learned a lot about planets last year. what do you think of comets?",
    "planets, always.",
    "i see.",
    "nobody cares what you think.",
]


def run_demo(output: str, seed: int) -> int:
    """Makes pairs and a small model, trains a scorer on two ranks, shows it at work; the exit code of the launch."""
    began = time.perf_counter()
    folder = Path(output)
    from lmgym.engine import free_port
    from reward_models.demo_pairs import bayes_accuracy, demo_pairs, write_demo_pairs

    write_demo_pairs(folder / "pairs.jsonl", PAIRS, seed)
    _make_model(folder / "small_llama", folder / "pairs.jsonl", seed)
    best = bayes_accuracy(demo_pairs(PAIRS, seed))
    print(f"{PAIRS} pairs by a seeded rule in {folder / 'pairs.jsonl'}; who knows the rule is right on {best:.1%}")

    experiment = Path(find_spec("reward_models").submodule_search_locations[0]) / "experiments/hh_pairwise.py"  # type: ignore[union-attr,index]
    command = [
        *(str(Path(sys.executable).with_name("deepspeed")), "--num_gpus", "2", "--master_port", str(free_port())),
        *("--log_level", "error", str(experiment), "--deepspeed", str(experiment.parents[2] / "configs/zero2.json")),
        *("--name", "demo", "--model", str(folder / "small_llama"), "--dataset", str(folder / "pairs.jsonl")),
        *("--eval_size", str(HELD_OUT), "--max_length", "256", "--global_batch", "32", "--micro_batch", "8"),
        *("--learning_rate", "3e-3", "--epochs", "2", "--precision", "fp32", "--seed", str(seed)),
        *("--output", str(folder / "scorer"), "--tracking", "none"),
    ]
    print("$", shlex.join(command), flush=True)
    code = subprocess.run(command, check=False).returncode
    if code == 0:
        _show_scores(folder / "scorer/model")
        print(f"demo: {time.perf_counter() - began:.0f} s; everything is in {folder.resolve()}")
    return code


def _make_model(folder: Path, pairs: Path, seed: int) -> None:
    from lmgym.small_models import make_small_model

    rows = [json.loads(line) for line in pairs.read_text().splitlines()]
    texts = [message["content"] for row in rows for side in ("prompt", "chosen", "rejected") for message in row[side]]
    make_small_model(folder, "llama", texts, layers=2, width=64, max_length=256, seed=seed)


def _show_scores(folder: Path) -> None:
    """What the scorer says of four replies to one message."""
    from rich.console import Console
    from rich.table import Table

    from lmgym.scorers import HFScorer
    from lmgym.text import Conversation, Turn

    conversation = Conversation((Turn("user", MESSAGE),))
    scores = HFScorer.load(folder).score([conversation] * len(REPLIES), REPLIES).tolist()
    table = Table(title=f"User: {MESSAGE}", title_justify="left")
    table.add_column("reply")
    table.add_column("score", justify="right")
    for score, reply in sorted(zip(scores, REPLIES, strict=True), reverse=True):
        table.add_row(reply, f"{score:+.2f}")
    Console(width=100).print(table)
