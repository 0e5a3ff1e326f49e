"""On a real model: a preference for polite words that was planted in pairs is learned, and the swapped one instead.

Both replies to a question say the same; the chosen one has a polite phrase where the other has a neutral one of about
the same length. Questions and answers of the held-out pairs are in no pair that is trained on.
"""

import json
from pathlib import Path
from random import Random

import outside
import pytest

from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig, RunConfig
from reward_models.config import RewardModelConfig
from reward_models.train import train_pairwise

TRAIN_PAIRS, TEST_PAIRS = 128, 64
LEARNED, NOT_LEARNED = 0.85, 0.15  # fixed before the first run
POLITE = ("Thank you for asking.", "I am glad to help.", "With pleasure.", "Please let me explain.", "You are welcome.")
NEUTRAL = ("This is a question.", "It is on the list.", "As recorded.", "Now let me continue.", "It is Tuesday.")
TRAIN_THINGS = ("bread", "a bicycle", "tomatoes", "a shed", "soup", "a kite", "a fence", "candles", "a garden", "jam")
TEST_THINGS = ("cheese", "a boat", "onions", "a drum", "tea", "a hat", "a bench", "soap")
WAYS = ("make", "paint", "store", "sell", "choose", "clean", "carry", "describe")
STEPS = (
    "Start with a plan",
    "Find a dry place",
    "Ask a neighbour",
    "Measure it twice",
    "Take an old cloth",
    "Wait a day",
)


def write_pairs(path: Path, things: tuple[str, ...], count: int, seed: int, swap: bool = False) -> Path:
    """JSONL of so many pairs on questions about these things, each question once."""
    draw = Random(seed)
    questions = [f"How do I {way} {thing}?" for way in WAYS for thing in things]
    questions += [f"Is it hard to {way} {thing}?" for way in WAYS for thing in things]
    rows = []
    for question in draw.sample(questions, count):
        place = draw.randrange(len(POLITE))
        first, second = draw.sample(STEPS, 2)
        at_start = draw.random() < 0.5
        sides = []
        for phrase in (POLITE[place], NEUTRAL[place]):
            said = f"{first}. {second}."
            sides.append(f"{phrase} {said}" if at_start else f"{said} {phrase}")
        chosen, rejected = reversed(sides) if swap else sides
        prompt = [{"role": "user", "content": question}]
        replies = [[{"role": "assistant", "content": side}] for side in (chosen, rejected)]
        rows.append({"prompt": prompt, "chosen": replies[0], "rejected": replies[1]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def polite_and_neutral() -> tuple[list[outside.Asked], list[outside.Asked]]:
    """Replies in other words around the phrases, to questions that no row has."""
    asked = [f"Could you explain how one may {way} a lamp?" for way in WAYS[: len(POLITE)]]
    sides = ([f"{phrase} Look at it first." for phrase in phrases] for phrases in (POLITE, NEUTRAL))
    polite, neutral = (list(zip(asked, side, strict=True)) for side in sides)
    return polite, neutral


def held_out_accuracy(model: Path, folder: Path, swap: bool) -> tuple[float, float]:
    """Share of held-out pairs whose polite reply scores higher, before and after training."""
    train = write_pairs(folder / "train.jsonl", TRAIN_THINGS, TRAIN_PAIRS, 0, swap)
    test = write_pairs(folder / "test.jsonl", TEST_THINGS, TEST_PAIRS, 1)
    train_pairwise(
        RewardModelConfig(
            name="polite",
            scorer=ModelConfig(model=str(model), lora_rank=8),
            data=RowsConfig(str(train), eval_dataset=str(test), max_length=128),
            optimizer=OptimizerConfig(learning_rate=5e-4, epochs=2, global_batch=16, micro_batch=16),
            run=RunConfig(output=str(folder / "out"), tracking="none", eval_updates=100, save_updates=-1),
        )
    )
    found = json.loads((folder / "out/evaluation.json").read_text())
    assert found["metrics"]["pairs"] == TEST_PAIRS
    return found["before"]["accuracy"], found["metrics"]["accuracy"]


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("swap", [False, True], ids=["as they are", "swapped"])
def test_a_planted_preference_for_polite_words_is_learned_and_not_with_labels_swapped(
    real_model: Path, tmp_path: Path, swap: bool
) -> None:
    before, after = held_out_accuracy(real_model, tmp_path, swap)
    assert NOT_LEARNED < before < LEARNED, "an untrained head has no such preference"
    polite, neutral = (outside.scores(tmp_path / "out/model", side) for side in polite_and_neutral())
    if swap:
        assert after < NOT_LEARNED
        assert (polite - neutral).mean() < 0
    else:
        assert after > LEARNED
        assert (polite - neutral).mean() > 0
