"""A judge learns from labels which reply is better in both orders; one that is told the label of one order does not."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lmgym.config import ModelConfig, OptimizerConfig, RunConfig
from lmgym.data.pairs import validate
from lmgym.data.records import read_records
from lmgym.models.small_models import make_small_model
from lmgym.scoring.judge_prompts import NAMES
from ppo import judging
from ppo.experiments.judge import CONFIG
from ppo.train import train

THINGS = [
    *("apple", "bread", "chair", "door", "egg", "fish", "grape", "house", "ink", "jam"),
    *("kite", "lamp", "moon", "nest", "oak", "pen", "quilt", "rose", "sun", "tree"),
]
HOW = ("quickly", "slowly", "kindly", "once")
UPDATES = 200
BAR = 0.8


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pairs of which one reply does what was asked, and a model from scratch."""
    folder = tmp_path_factory.mktemp("judge")
    rows = [
        {"prompt": f"Name the {thing} {how}.", "chosen": f"The {thing}.", "rejected": "No."}
        for thing in THINGS
        for how in HOW
    ]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pairs, _ = validate(read_records(str(folder / "pairs.jsonl")))
    texts = [turn.text for task in judging.tasks_of(pairs, (0, 1), False) for turn in task["prompt"].turns]
    make_small_model(folder / "start", "llama", texts, width=64, max_length=512)
    return folder


def both_orders_right(start: Path, output: Path, updates: int, seed: int = 0) -> tuple[float, float]:
    """Of 16 held-out pairs, before training and after the last update."""
    config = replace(
        CONFIG,
        policy=ModelConfig(str(start / "start"), precision="fp32"),
        rollout=replace(CONFIG.rollout, prompts=str(start / "pairs.jsonl"), eval_size=16),
        optimizer=OptimizerConfig(
            5e-3, schedule="constant_with_warmup", adam_beta2=0.99, global_batch=128, micro_batch=128,
            max_updates=updates, seed=seed,
        ),
        run=RunConfig(str(output), tracking="none", eval_updates=updates, save_updates=-1),
    )  # fmt: skip
    train(config, judging.judge_of_pairs)
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    found = [line["metrics/both_orders_right"] for line in lines if "metrics/both_orders_right" in line]
    return found[0], found[-1]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_judge_is_right_in_both_orders_of_pairs_that_it_has_not_seen(seed: int, start: Path, tmp_path: Path) -> None:
    before, after = both_orders_right(start, tmp_path, UPDATES, seed)
    assert before < 0.5
    assert after > BAR  # and so it changes with the order in fewer than a fifth


@pytest.mark.slow
def test_a_judge_whose_labels_forget_the_order_names_a_place(start: Path, tmp_path: Path, monkeypatch) -> None:
    task = judging._task
    monkeypatch.setattr(judging, "_task", lambda *given: task(*given) | {"label": NAMES[0]})
    both_orders_right(start, tmp_path, 40)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["metrics/changes_with_order"] > BAR
