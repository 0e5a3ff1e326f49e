"""`make demo`: from nothing to a judged scorer of users' traces, with the commands that a user would type."""

import json
import os
import shlex
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

ROWS, HELD_OUT, STEPS = 50_000, 3000, 500


def run_demo(output: str, seed: int, rows: int = ROWS, steps: int = STEPS) -> int:
    """A world, a small model, a scorer trained on two ranks, and what it is worth; the code of the step that failed."""
    began = time.perf_counter()
    folder = Path(output)
    from lmgym.engine import free_port

    binaries = Path(sys.executable).parent
    experiment = Path(find_spec("reward_models").submodule_search_locations[0]) / "experiments/convo_joint.py"  # type: ignore[union-attr,index]
    world, model, scorer = folder / "world", folder / "small_llama", folder / "scorer"
    commands = [
        [binaries / "lmgym", "world", "--rows", rows, "--seed", seed, "--output", world],
        [binaries / "lmgym", "world-model", "--world", world, "--steps", steps, "--output", model],
        [
            *(binaries / "deepspeed", "--num_gpus", 2, "--master_port", free_port(), "--log_level", "error"),
            *(experiment, "--deepspeed", experiment.parents[2] / "configs/zero2.json", "--name", "demo"),
            *("--model", model, "--dataset", world / "logs.parquet", "--probe_data", world),
            *("--eval_size", min(HELD_OUT, rows // 5), "--max_length", 128, "--global_batch", 64, "--micro_batch", 32),
            *("--learning_rate", "3e-3", "--weight_decay", 0.3, "--freeze_embeddings", "--adam_beta2", 0.99),
            *("--epochs", 2, "--precision", "fp32", "--seed", seed, "--output", scorer, "--tracking", "none"),
        ],
    ]
    for command in commands:
        words = [str(word) for word in command]
        print("$", shlex.join(words), flush=True)
        code = subprocess.run(words, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode
        if code:
            return code
    _compare(world, scorer)
    _show_scores(world, scorer / "model", seed)
    print(f"demo: {time.perf_counter() - began:.0f} s; everything is in {folder.resolve()}")
    return 0


def _compare(world: Path, scorer: Path) -> None:
    """The scorer beside its baselines and the oracle."""
    from rich.console import Console
    from rich.table import Table

    from reward_models.baselines import baselines

    metrics = json.loads((scorer / "evaluation.json").read_text())["metrics"]
    found = baselines(world)
    table = Table(title="Spearman with the hidden utility, for users whom no log shows", title_justify="left")
    table.add_column("")
    table.add_column("value", justify="right")
    for name, value in (
        ("length of the reply", found["length"]),
        ("bag of words", found["bag_of_words"]),
        ("the scorer", metrics["gold/gold_spearman"]),
        ("oracle: the utility's own features, fitted to the same traces", found["oracle"]),
    ):
        table.add_row(name, f"{value:.3f}")
    Console(width=100).print(table)


def _show_scores(world: Path, model: Path, seed: int) -> None:
    """What the scorer says of four replies to one message, beside what they are worth."""
    import pyarrow.parquet as pq
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from lmgym.environments.world import World
    from lmgym.scorers import HFScorer
    from lmgym.text import from_transcript

    group = pq.read_table(world / "kwise.parquet").slice(0, 1).to_pylist()[0]
    conversations = [from_transcript(group["prompt"])] * len(group["replies"])
    scores = HFScorer.load(model).score(conversations, group["replies"]).tolist()
    worth = World(seed).utility(conversations, group["replies"]).tolist()
    table = Table(title=escape(group["prompt"]), title_justify="left")
    for name in ("reply", "score", "hidden utility"):
        table.add_column(name, justify="left" if name == "reply" else "right")
    for score, value, reply in sorted(zip(scores, worth, group["replies"], strict=True), reverse=True):
        table.add_row(escape(reply), f"{score:.3f}", f"{value:+.2f}")
    Console(width=100).print(table)
