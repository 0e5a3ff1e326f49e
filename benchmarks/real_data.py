"""A small scorer trained from scratch on real people's choices, and on the same choices swapped.

    .venv/bin/python benchmarks/real_data.py            # seeds 0 1 2; writes benchmarks/results/real_data.json

Two ranks under ZeRO 2 through the `deepspeed` launcher, as a user runs it. The evaluation pairs are the same and never
swapped: a model trained on swapped labels must land as far below one half as the other lands above. The settings were
chosen on split 99, which is not reported.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from shared import PAIRS_FILE, ROOT, read_results, run_measured, write_result

from lmgym.data.pairs import Pair, validate
from lmgym.data.records import read_records
from lmgym.data.rows import fingerprint
from lmgym.data.splitting import split_by_unit
from lmgym.distributed.ranks import free_port
from lmgym.models.small_models import make_small_model

SETTINGS = {
    "max_length": "384",
    "precision": "fp32",
    "learning_rate": "1e-3",
    "epochs": "3",
    "global_batch": "32",
    "micro_batch": "4",
    "weight_decay": "0.1",
}
MODEL = {"layers": 2, "width": 64, "vocab_size": 4096, "max_length": 512}


def as_row(pair: Pair, swap: bool) -> dict:
    """A validated pair in the conversational format, its sides exchanged on request."""
    prompt = [
        {"role": "user" if t.speaker == "user" else "assistant", "content": t.text} for t in pair.conversation.turns
    ]
    sides = [[{"role": "assistant", "content": reply}] for reply in (pair.chosen, pair.rejected)]
    chosen, rejected = reversed(sides) if swap else sides
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def write_rows(path: Path, pairs: list[Pair], swap: bool = False) -> Path:
    """JSONL of the pairs."""
    path.write_text("".join(json.dumps(as_row(pair, swap)) + "\n" for pair in pairs))
    return path


def launch(output: Path, model: Path, train: Path, evaluation: Path, seed: int) -> dict:
    """One run; its metrics, minutes and peak memory over all processes."""
    flags = [part for name, value in SETTINGS.items() for part in (f"--{name}", value)]
    command = [
        *(str(Path(sys.executable).with_name("deepspeed")), "--num_gpus", "2", "--master_port", str(free_port())),
        *(
            "--log_level",
            "error",
            str(ROOT / "reward_models/experiments/hh_pairwise.py"),
            "--deepspeed",
            str(ROOT / "configs/zero2.json"),
        ),
        *("--model", str(model), "--dataset", str(train), "--eval_dataset", str(evaluation)),
        *("--seed", str(seed), "--output", str(output), "--tracking", "none", *flags),
    ]
    return {**run_measured(command), **read_results(output)}


def run_seed(seed: int) -> dict:
    """The same split, model and order with labels as they are and swapped."""
    pairs, rejections = validate(read_records(str(PAIRS_FILE)))
    train, evaluation = split_by_unit(pairs, 0.2, seed)
    texts = [reply for pair in train for reply in (pair.chosen, pair.rejected)]
    texts += [turn.text for pair in train for turn in pair.conversation.turns]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model = make_small_model(folder / "model", "llama", texts, seed=seed, **MODEL)
        held_out = write_rows(folder / "test.jsonl", evaluation)
        result = {"seed": seed, "rows_unusable": len(rejections), "fingerprint": fingerprint(train, evaluation)}
        for name, swap in (("labels as they are", False), ("labels swapped", True)):
            rows = write_rows(folder / f"train_{swap}.jsonl", train, swap)
            result[name] = launch(folder / f"out_{swap}", model, rows, held_out, seed)
            m = result[name]["metrics"]
            interval = f"{m['accuracy_low']:.3f}-{m['accuracy_high']:.3f}"
            print(
                f"seed {seed}, {name}: {m['accuracy']:.3f} ({interval}), {result[name]['minutes']:.1f} min",
                flush=True,
            )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/real_data.json")
    arguments = parser.parse_args()
    runs = [run_seed(seed) for seed in arguments.seeds]
    means = {
        name: statistics.mean(run[name]["metrics"]["accuracy"] for run in runs)
        for name in ("labels as they are", "labels swapped")
    }
    found = {"settings": SETTINGS, "model": MODEL, "mean": means, "runs": runs}
    write_result(arguments.output, found, "rows", "method", "intervals")
    print(f"mean accuracy {means}; written to {arguments.output}")


if __name__ == "__main__":
    main()
