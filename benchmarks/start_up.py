"""CPU seconds of whole commands, of which starting is most: their help, a refusal, a plan, four scores.

    .venv/bin/python benchmarks/start_up.py                      # writes benchmarks/results/start_up.json
    .venv/bin/python benchmarks/start_up.py --before CHECKOUT    # turn and turn about with that of an earlier commit

One thread, user and system time of each command with all that it starts, the median of some runs after one that is not
counted. The model is a Llama of two layers, so that little beside imports is measured.
"""

import argparse
import datetime
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from machine import describe_machine
from rich.console import Console
from rich.table import Table

BENCHMARKS = Path(__file__).resolve().parent
ROWS = BENCHMARKS.parent / "examples/data/helpful_pairs.jsonl"
console = Console(width=130)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="checkout of an earlier commit")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--output", type=Path, default=BENCHMARKS / "results/start_up.json")
    return parser.parse_args()


def make_files(folder: Path) -> dict[str, list[str]]:
    """A model, a scorer and rows in a folder; the commands on them by what they are called in the table."""
    from lmgym.models.loading import load_classifier, load_tokenizer
    from lmgym.models.saving import save_classifier
    from lmgym.models.small_models import make_small_model

    lines = ROWS.read_text(encoding="utf-8").splitlines(keepends=True)
    for count in (4, 100):
        (folder / f"rows{count}.jsonl").write_text("".join(lines[:count]))
    model = make_small_model(folder / "model", "llama", (json.loads(line)["chosen"] for line in lines))
    tokenizer = load_tokenizer(str(model))
    scorer, _ = load_classifier(str(model), tokenizer)
    save_classifier(scorer, scorer.state_dict(), folder / "scorer", tokenizer, {"reduce": "logit"})
    return {
        "help": ["--help"],
        "refusal of a model without a head": ["score", "model", "rows4.jsonl"],
        "score of 4 rows": ["score", "scorer", "rows4.jsonl"],
        "train dpo of 100 rows, --dry_run": ["train", "dpo", "rows100.jsonl", "--dry_run", "--model", "model"],
    }


def cpu_seconds(checkout: Path, words: list[str], folder: Path) -> float:
    """User and system time of a command. Raises RuntimeError for a traceback."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(checkout)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "lmgym", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 2):
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}: {done.stderr[-2000:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    given = parse_arguments()
    checkouts = {"before": given.before.resolve()} if given.before else {}
    checkouts["here"] = BENCHMARKS.parent
    table = Table("CPU seconds of", *checkouts)
    results = {}
    with tempfile.TemporaryDirectory() as name:
        for what, words in make_files(Path(name)).items():
            seconds: dict[str, list[float]] = {one: [] for one in checkouts}
            for _ in range(1 + given.repetitions):
                for one, checkout in checkouts.items():
                    seconds[one].append(cpu_seconds(checkout, words, Path(name)))
            results[what] = {one: [round(value, 3) for value in values[1:]] for one, values in seconds.items()}
            table.add_row(what, *(f"{statistics.median(values):.2f}" for values in results[what].values()))
    console.print(table)
    day = datetime.date.today().isoformat()
    given.output.write_text(
        json.dumps({"date": day, "machine": describe_machine(), "seconds": results}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
