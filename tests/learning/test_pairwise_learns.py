"""Scorers learn what they are shown: above a threshold as the pairs are, as far below one half with labels swapped."""

import json
from dataclasses import replace
from pathlib import Path

import outside
import pytest
from demo_pairs import write_demo_pairs

from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig, RunConfig
from reward_models.config import RewardModelConfig
from reward_models.train import train_pairwise


@pytest.fixture(scope="module")
def learning_config(small_models, tmp_path_factory) -> RewardModelConfig:
    """1,200 demo pairs to learn from once, 300 later ones to be judged on."""
    folder = tmp_path_factory.mktemp("learning")
    write_demo_pairs(folder / "all.jsonl", 1500, seed=0)
    rows = (folder / "all.jsonl").read_text().splitlines(keepends=True)
    (folder / "train.jsonl").write_text("".join(rows[:1200]))
    (folder / "test.jsonl").write_text("".join(rows[1200:]))
    return RewardModelConfig(
        name="learning",
        scorer=ModelConfig(model=str(small_models["llama"]), precision="fp32"),
        data=RowsConfig(str(folder / "train.jsonl"), eval_dataset=str(folder / "test.jsonl"), max_length=256),
        optimizer=OptimizerConfig(learning_rate=5e-3, epochs=1, global_batch=16, micro_batch=8),
        run=RunConfig(output=str(folder / "out"), tracking="none"),
    )


GOOD = (
    ("what is so special about soup?", "there is nothing like soup on a quiet evening. what do you think of soup?"),
    ("can you tell me something about jazz?", "thank you. many people listen to jazz these days. why jazz?"),
    ("hi, do you like roses or tulips?", "lovely! i could talk about roses for hours. when did you first grow roses?"),
    ("i would love to watch films this weekend.", "that sounds lovely. films and comedies are a fine pair."),
)
BAD = ("go away and stop it.", "nobody cares what you think.", "ok.", "that is a stupid thing to say.")


def seen_from_outside(folder: Path) -> float:
    """The mean score of good replies above that of bad ones, by transformers on texts that are written here."""
    good = outside.scores(folder, GOOD)
    bad = outside.scores(folder, [(asked, reply) for (asked, _), reply in zip(GOOD, BAD, strict=True)])
    return float((good - bad).mean())


def held_out_accuracy(config: RewardModelConfig) -> float:
    train_pairwise(config)
    return json.loads((Path(config.output) / "evaluation.json").read_text())["metrics"]["accuracy"]


def test_a_scorer_learns_the_demo_pairs(learning_config):
    assert held_out_accuracy(learning_config) > 0.68
    assert seen_from_outside(Path(learning_config.output) / "model") > 1


@pytest.mark.slow
def test_a_scorer_of_swapped_labels_prefers_what_people_rejected(learning_config, tmp_path):
    rows = [json.loads(line) for line in Path(learning_config.data.dataset).read_text().splitlines()]
    swapped = tmp_path / "swapped.jsonl"
    swapped.write_text(
        "".join(json.dumps({**row, "chosen": row["rejected"], "rejected": row["chosen"]}) + "\n" for row in rows)
    )
    data = replace(learning_config.data, dataset=str(swapped))
    config = replace(learning_config, data=data, run=replace(learning_config.run, output=str(tmp_path / "out")))
    assert held_out_accuracy(config) < 0.32
    assert seen_from_outside(Path(config.output) / "model") < -1
