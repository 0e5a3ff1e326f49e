"""A scorer trained from a real pretrained model on real people's choices: LoRA on SmolLM2-135M-Instruct, one pass.

    lmgym get smollm2-135m
    .venv/bin/python benchmarks/real_scorer.py          # writes benchmarks/results/real_scorer.json

A fifth of the pairs is held out by prompt. One process, as a user without a GPU runs it; OMP_NUM_THREADS sets its
threads. The same command again continues a run that was stopped.
"""

import argparse
import os
import sys
from pathlib import Path

from shared import PAIRS_FILE, ROOT, describe_machine, read_results, run_measured, write_result

SETTINGS = {
    "eval_size": "0.2",
    "max_length": "256",
    "precision": "bf16",
    "lora_rank": "16",
    "learning_rate": "2e-4",
    "epochs": "1",
    "global_batch": "16",
    "micro_batch": "8",
    "eval_updates": "1000",  # before step 1 and after the last: each evaluation costs a tenth of the training
}


def train_command(model: Path, pairs: Path, output: Path, seed: int) -> list[str]:
    """The training run as a user types it."""
    flags = [part for name, value in SETTINGS.items() for part in (f"--{name}", value)]
    return [
        *(sys.executable, str(ROOT / "reward_models/experiments/hh_pairwise.py")),
        *("--model", str(model), "--dataset", str(pairs), "--output", str(output)),
        *("--seed", str(seed), "--tracking", "none", *flags),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=ROOT / "outputs/models/smollm2-135m")
    parser.add_argument("--pairs", type=Path, default=PAIRS_FILE, help="real preference pairs")
    parser.add_argument("--seed", type=int, default=0, help="of the head, the adapters and the order of pairs")
    parser.add_argument("--run", type=Path, default=ROOT / "outputs/real_scorer", help="folder of the training run")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/real_scorer.json")
    arguments = parser.parse_args()
    machine = describe_machine()
    measured = run_measured(train_command(arguments.model, arguments.pairs, arguments.run, arguments.seed))
    result = {
        "model": "SmolLM2-135M-Instruct",
        "settings": SETTINGS,
        "seed": arguments.seed,
        "threads": os.environ.get("OMP_NUM_THREADS", "not set"),
        "machine": machine,
        **measured,
        **read_results(arguments.run),
    }
    write_result(arguments.output, result, "rows", "method", "intervals")
    found = result["metrics"]
    interval = f"{found['accuracy_low']:.3f} to {found['accuracy_high']:.3f}"
    print(f"accuracy {found['accuracy']:.3f} ({interval}) on {found['pairs']:.0f} held-out pairs")
    print(f"{measured['minutes']:.0f} minutes; written to {arguments.output}")


if __name__ == "__main__":
    main()
