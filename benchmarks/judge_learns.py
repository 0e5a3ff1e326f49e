"""`lmgym train judge`: how often a judge is right in both orders, before training, while it learns, and after.

    .venv/bin/python benchmarks/judge_learns.py --model outputs/models/smollm2-135m --seeds 0 1 2
    .venv/bin/python benchmarks/judge_learns.py --model ... --seeds 0 --pairs ROWS --held_out OTHER_ROWS

Without `--pairs` the task is which of two replies has the form that the prompt asks for (capital letters, a numbered
list, quotation marks, exclamation marks): 24 kinds of things, of which 8 are held out with all their prompts, one pair
a prompt. The scorer beside it is trained on the same pairs, twice over. Other flags are those of
`ppo/experiments/judge.py`. Writes benchmarks/results/judge_learns.json, or judge_learns_ROWS.json.
"""

import argparse
import datetime
import json
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from shared import ROOT, describe_machine, launch, metrics_of, seconds_of

from lmgym.data.mixing import DataSet
from lmgym.data.pairs import Pair, validate
from lmgym.data.rows import prompt_key
from lmgym.report.calibration import calibration_error
from lmgym.scoring.comparing_judge import BothOrders
from lmgym.scoring.named_scorers import load_scorer
from lmgym.statistics import share

HELD_OUT_KINDS, PER_PROMPT = 8, 3
FLAGS = {"--learning_rate": "1e-5", "--max_updates": "40", "--eval_updates": "10"}
SCORER_FLAGS = ("--learning_rate", "2e-5", "--global_batch", "16", "--epochs", "2", "--max_length", "512")
SHOWN = ("metrics/accuracy", "metrics/both_orders_right", "metrics/changes_with_order")
THINGS = """fruits: apple pear plum cherry lemon mango
colours: red blue green yellow white black
animals: dog cat horse sheep mouse goat
tools: hammer saw drill file chisel level
rivers: Nile Rhine Danube Volga Congo Ganges
sports: tennis rowing chess football judo golf
metals: iron copper zinc gold silver tin
birds: robin crow eagle heron owl swan
jobs: baker nurse pilot farmer teacher clerk
drinks: tea coffee milk water juice cider
rooms: kitchen attic cellar bedroom hall study
fabrics: wool linen silk cotton velvet felt
trees: oak birch pine maple willow elm
planets: Mars Venus Saturn Earth Neptune Uranus
tastes: sweet sour salty bitter smoky spicy
spices: pepper salt cumin ginger clove mace
fish: trout salmon cod herring carp perch
vehicles: car bus train bicycle ship truck
instruments: piano violin flute drum harp trumpet
vegetables: carrot onion pea leek cabbage turnip
games: poker bridge snooker darts bowls draughts
clothes: shirt coat glove sock hat scarf
insects: bee ant moth wasp beetle cricket
months: March April May June July August"""
FORMS: dict[str, Callable[[Sequence[str]], str]] = {
    "in capital letters": lambda words: ", ".join(words).upper(),
    "as a numbered list": lambda words: "\n".join(f"{number}. {word}" for number, word in enumerate(words, 1)),
    "in quotation marks": lambda words: '"' + ", ".join(words) + '"',
    "with exclamation marks": lambda words: "! ".join(words) + "!",
}


def form_pairs() -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Rows to train on and held-out ones: the chosen reply has the form that is asked for, the rejected another one."""
    chance, train, test = random.Random(0), list[dict[str, str]](), list[dict[str, str]]()
    kinds = [line.split(": ") for line in THINGS.splitlines()]
    for number, (kind, words) in enumerate(kinds):
        held_out = number >= len(kinds) - HELD_OUT_KINDS
        for asked in FORMS:
            others = [form for form in FORMS if form != asked]
            others = chance.sample(others, 1) if held_out else others * PER_PROMPT
            for other in others:
                named = [chance.sample(words.split(), 3) for _ in range(2)]
                row = {"prompt": f"Name three {kind}, {asked}.", "chosen": FORMS[asked](named[0])}
                (test if held_out else train).append(row | {"rejected": FORMS[other](named[1])})
    return train, test


def figures(spec: str, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Of a scorer: accuracy, and of a judge both orders together, changes with the order and calibration of P."""
    scorer: Any = load_scorer(spec)
    prompts = [prompt_key(pair.conversation) for pair in pairs]
    given = [pair.conversation for pair in pairs], [pair.chosen for pair in pairs], [pair.rejected for pair in pairs]
    if not spec.startswith("compare:"):
        margins = np.asarray(scorer.score(given[0], given[1])) - np.asarray(scorer.score(given[0], given[2]))
        return {"accuracy": vars(share(margins > 0, prompts)), "calibration_error": calibration_error(margins)}
    found = scorer.compare(*given)
    both = BothOrders.of([one.shown_first for one in found], [one.shown_second for one in found], prompts)
    return {
        "accuracy": vars(share([one.p > 0.5 for one in found], prompts)),
        "both_orders_right": vars(both.right),
        "changes_with_order": vars(both.changes),
        "calibration_error": both.calibration_error,
    }


def learn(model: Path, train: Path, held_out: Path, seed: int, more: Sequence[str], pairs: Sequence[Pair]) -> dict:
    """A run of the experiment: its curve of evaluations, and the figures of what it saved."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "run"
        flags = ["--prompts", train, "--eval_prompts", held_out, "--eval_size", 2 * len(pairs), "--seed", seed]
        launch("ppo/experiments/judge.py", model, output, [*flags, *more], shown=True)
        curve = [{"step": line["step"], **{name: line[name] for name in SHOWN}} for line in metrics_of(output) if
                 SHOWN[0] in line]  # fmt: skip
        after = figures(f"compare:{output / 'model'}", pairs)
        return {"seed": seed, "cpu_seconds": seconds_of(output), "curve": curve, "after": after}


def score(model: Path, train: Path, held_out: Path, pairs: Sequence[Pair]) -> dict[str, Any]:
    """A scorer of the same pairs."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "run"
        flags = ["--dataset", train, "--eval_dataset", held_out, *SCORER_FLAGS]
        launch("reward_models/experiments/hh_pairwise.py", model, output, flags)
        return {"cpu_seconds": seconds_of(output), "flags": SCORER_FLAGS, **figures(str(output / "model"), pairs)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--pairs", type=Path, help="rows to train on")
    parser.add_argument("--held_out", type=Path, help="other rows")
    arguments, words = parser.parse_known_args()
    given = FLAGS | dict(zip(words[::2], words[1::2], strict=True))
    more = [word for pair in given.items() for word in pair]
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        train, held_out = arguments.pairs, arguments.held_out
        if train is None:
            train, held_out = Path(folder) / "train.jsonl", Path(folder) / "held_out.jsonl"
            for path, rows in zip((train, held_out), form_pairs(), strict=True):
                path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        pairs, _ = validate(DataSet(str(held_out), "train"))
        run(arguments, more, train, held_out, pairs)


def run(arguments: argparse.Namespace, more: Sequence[str], train: Path, held_out: Path, pairs: Sequence[Pair]) -> None:
    """The base, a scorer and a judge a seed; the results are written after each."""
    name = f"judge_learns_{train.stem}" if arguments.pairs else "judge_learns"
    found: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "machine": describe_machine(),
        "flags": more, "held_out_pairs": len(pairs), "base": figures(f"compare:{arguments.model}", pairs),
    }  # fmt: skip
    print("base", json.dumps(found["base"]), flush=True)
    found["scorer"] = score(arguments.model, train, held_out, pairs)
    print("scorer", json.dumps(found["scorer"]), flush=True)
    found["judges"] = []
    for seed in arguments.seeds:
        found["judges"].append(learn(arguments.model, train, held_out, seed, more, pairs))
        print("judge", json.dumps(found["judges"][-1]), flush=True)
        (ROOT / f"benchmarks/results/{name}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
