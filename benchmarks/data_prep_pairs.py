"""CPU seconds and memory of reading, checking and tokenising pairs: `lmgym train ... --dry_run`, twice.

    .venv/bin/python benchmarks/data_prep_pairs.py --model FOLDER    # writes benchmarks/results/data_prep_pairs.json
    .venv/bin/python benchmarks/data_prep_pairs.py --model FOLDER --before CHECKOUT --pairs 200000

Pairs are made of the words of real ones (../shared), cut to about 100 tokens, each prompt with a number of its own.
Each run is a process of its own on one thread; `again` finds the tokenised rows of `new`. `--before` is a checkout of
an earlier commit, which runs in the same environment.
"""

import argparse
import datetime
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from machine import describe_machine
from rich.console import Console
from rich.table import Table

BENCHMARKS = Path(__file__).resolve().parent
REAL_PAIRS = BENCHMARKS.parents[1] / "shared/data/hh-rlhf-harmless/pairs.jsonl.gz"
STAGES = {"DPO": "preferences/experiments/dpo.py", "reward model": "reward_models/experiments/hh_pairwise.py",
          "SFT": "sft/experiments/hh_chosen.py"}  # fmt: skip
MOST_CHARACTERS = 160  # of a prompt and of a reply
console = Console(width=130)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="folder of a model with its tokenizer, as of lmgym get")
    parser.add_argument("--pairs", type=int, default=200_000)
    parser.add_argument("--before", type=Path, help="checkout of an earlier commit")
    parser.add_argument("--only", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--output", type=Path, default=BENCHMARKS / "results/data_prep_pairs.json")
    return parser.parse_args()


def write_pairs(path: Path, count: int) -> None:
    """Pairs of plain text out of real transcripts."""
    rows = []
    with gzip.open(REAL_PAIRS, "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            chosen, rejected = (re.split(r"\n\n(?:Human|Assistant): ?", row[side]) for side in ("chosen", "rejected"))
            texts = [text[:MOST_CHARACTERS].strip() for text in (chosen[1], chosen[-1], rejected[-1])]
            if all(texts) and texts[1] != texts[2]:
                rows.append(texts)
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            prompt, good, bad = rows[number % len(rows)]
            file.write(json.dumps({"prompt": f"{prompt} ({number})", "chosen": good, "rejected": bad}) + "\n")


def dry_run(checkout: Path, stage: str, model: str, data: Path, cache: Path) -> dict[str, float]:
    """CPU seconds and the largest resident memory of one run. Raises RuntimeError if it fails."""
    command = [sys.executable, str(checkout / STAGES[stage]), "--model", model, "--dataset", str(data), "--dry_run"]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(checkout),
        "HF_DATASETS_CACHE": str(cache),
    }  # fmt: skip
    process = subprocess.Popen(command, env=environment, cwd=data.parent, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{' '.join(command)} failed")
    return {"cpu_seconds": usage.ru_utime + usage.ru_stime, "resident_gib": usage.ru_maxrss / 2**20}


def main() -> None:
    arguments = parse_arguments()
    contenders = ([("before", arguments.before)] if arguments.before else []) + [("new", BENCHMARKS.parent)]
    model, found = str(Path(arguments.model).resolve()), {}
    table = Table(title=f"{arguments.pairs:,} pairs, --dry_run")
    for column in ("stage", "", "CPU s", "GiB resident"):
        table.add_column(column, justify="left" if column in ("stage", "") else "right")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "pairs.jsonl"
        write_pairs(data, arguments.pairs)
        for stage in arguments.only:
            for name, checkout in [*contenders, ("again", BENCHMARKS.parent)]:
                figures = dry_run(checkout.resolve(), stage, model, data, Path(folder) / "cache")
                found.setdefault(stage, {})[name] = figures
                table.add_row(stage, name, f"{figures['cpu_seconds']:.1f}", f"{figures['resident_gib']:.2f}")
                console.print(
                    f"{stage:13} {name:7} {figures['cpu_seconds']:7.1f} CPU s {figures['resident_gib']:6.2f} GiB"
                )
    console.print(table)
    output = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "machine": describe_machine(),
        "pairs": arguments.pairs, "stages": found,
    }  # fmt: skip
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(output, indent=1) + "\n")
    console.print(f"written: {arguments.output.name}")


if __name__ == "__main__":
    main()
