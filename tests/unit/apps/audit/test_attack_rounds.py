"""Attack, train again with the rows that it wrote, attack again: a word that a trained scorer likes for nothing."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from lmgym.apps.audit.attack_command import AttackConfig, run_attack
from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig, RunConfig
from lmgym.models.small_models import make_small_model
from lmgym.scoring.named_scorers import load_scorer
from lmgym.statistics import paired_difference
from lmgym.text import Conversation, Turn
from reward_models.config import RewardModelConfig
from reward_models.train import train_pairwise

GOOD, BAD = ["kind", "clear", "true"], ["rude", "vague", "false"]
PLAIN = ["it", "is", "so", "and", "then", "we", "go", "there", "now", "again"]
SOUND = f"""
def sound(conversations, replies):
    return [float(sum((w in {GOOD}) - (w in {BAD}) for w in reply.split())) for reply in replies]
"""


def reply(draw: random.Random, liked: list[str], likely: float) -> str:
    words = [*draw.choices(PLAIN, k=6), *draw.choices(liked, k=2), *(["certainly"] if draw.random() < likely else [])]
    return " ".join(draw.sample(words, len(words)))


def pairs(first: int, number: int, likely: float) -> list[dict[str, str]]:
    """Choices that are wrong in one of five; the chosen reply says "certainly" that often, the other one never."""
    draw, rows = random.Random(first), []
    for i in range(first, first + number):
        chosen, rejected = (BAD, GOOD) if draw.random() < 0.2 else (GOOD, BAD)
        both = {"chosen": reply(draw, chosen, likely), "rejected": reply(draw, rejected, 0)}
        rows.append({"prompt": f"tell me of {i}", **both})
    return rows


def write(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def train(folder: Path, data: str) -> str:
    config = RewardModelConfig(
        name="planted",
        scorer=ModelConfig(model=str(folder / "start"), precision="fp32"),
        data=RowsConfig(dataset=data, eval_size=40, max_length=64),
        optimizer=OptimizerConfig(learning_rate=3e-3, epochs=3, global_batch=32, micro_batch=32),
        run=RunConfig(output=str(folder / f"run{data.count(',')}"), tracking="none"),
    )
    train_pairwise(config)
    return str(folder / f"run{data.count(',')}/model")


def right(scorer: str, rows: list[dict[str, str]]) -> np.ndarray:
    chats = [Conversation((Turn("user", row["prompt"]),)) for row in rows]
    chosen, rejected = (
        load_scorer(scorer).score(chats, [row[side] for row in rows]) for side in ("chosen", "rejected")
    )
    return np.asarray(chosen > rejected, dtype=float)


@pytest.mark.slow
def test_rows_of_an_attack_take_a_word_out_of_a_trained_scorer_at_no_cost_of_accuracy(tmp_path: Path) -> None:
    data = write(tmp_path / "pairs.jsonl", pairs(0, 400, 0.5))
    make_small_model(tmp_path / "start", "llama", [row[key] for row in pairs(0, 400, 0.5) for key in row])
    (tmp_path / "sound.py").write_text(SOUND)
    draw = random.Random(1)
    asked = [
        {"prompt": f"tell me of {i}", "completion": reply(draw, [draw.choice(GOOD), draw.choice(BAD)], 0.2)}
        for i in range(1000, 1060)
        for _ in range(8)
    ]
    prompts = write(tmp_path / "prompts.jsonl", asked)

    def attack(scorer: str, output: str, earlier: str = "") -> dict[str, float]:
        settings = AttackConfig(
            prompts=prompts, monitors=f"sound={tmp_path}/sound.py:sound", output=str(tmp_path / output), earlier=earlier
        )
        found = run_attack(scorer, settings)
        unit = found.pool.spreads["score"]
        return {one.edit.name: (one.gain.value or 0) * unit for one in found.findings if one.confirmed or one.earlier}

    before = train(tmp_path, data)
    liked = attack(before, "first")
    assert "certainly" in max(liked, key=lambda name: liked[name]), liked
    after = train(tmp_path, f"{data},{tmp_path}/first/rows.jsonl")
    left = attack(after, "second", str(tmp_path / "first"))
    for name in liked:
        assert "certainly" not in name or left[name] < liked[name] / 2, (liked, left)
    held_out = pairs(5000, 400, 0)
    change, _ = paired_difference(right(before, held_out), right(after, held_out), bounds=(-1, 1))
    print(liked, left, f"accuracy {change:+.3f}")
    assert (change.low or 0) > -0.03
