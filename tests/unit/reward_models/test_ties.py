"""Ties among pairs, rows with the preference .5: their loss, and that they train a scorer and are not evaluated on."""

import json
import math
from pathlib import Path

import pytest
import torch

from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig, RunConfig, TrainerConfig
from lmgym.models.small_models import make_small_model
from lmgym.scoring.named_scorers import load_scorer
from lmgym.text import Conversation, Turn
from reward_models.config import RewardModelConfig
from reward_models.losses import bradley_terry
from reward_models.train import train_pairwise


def test_a_tie_costs_half_of_either_choice_and_is_least_at_equal_scores() -> None:
    chosen, rejected = torch.tensor([2.0], requires_grad=True), torch.tensor([0.5])
    total, count = bradley_terry(chosen, rejected, preference=torch.tensor([0.5]))
    by_hand = 0.5 * math.log(1 + math.exp(-1.5)) + 0.5 * math.log(1 + math.exp(1.5))
    assert (total.item(), count.item()) == (pytest.approx(by_hand), 1)
    total.backward()
    assert chosen.grad is not None
    assert chosen.grad.item() == pytest.approx(1 / (1 + math.exp(-1.5)) - 0.5)
    equal, _ = bradley_terry(torch.zeros(1), torch.zeros(1), preference=torch.tensor([0.5]))
    assert equal.item() == pytest.approx(math.log(2))


def test_a_certain_preference_is_the_usual_loss_and_that_of_0_the_exchanged_pair() -> None:
    chosen, rejected, margin = torch.tensor([[1.0, -2.0], [0.3, 0.4], [0.0, 0.0]])
    usual, _ = bradley_terry(chosen, rejected, margin)
    certain, _ = bradley_terry(chosen, rejected, margin, preference=torch.ones(2))
    exchanged, _ = bradley_terry(rejected, chosen, margin)
    never, _ = bradley_terry(chosen, rejected, margin, preference=torch.zeros(2))
    assert certain.item() == usual.item()
    assert never.item() == pytest.approx(exchanged.item(), rel=1e-6)


def asked(number: int) -> str:
    return f"what is number {number}?"


@pytest.mark.slow  # two trainings; the loss of ties is tested by hand-computed numbers
@pytest.mark.parametrize("heads", [1, 3])
def test_ties_take_a_word_out_of_a_scorer_that_pairs_taught_it(tmp_path: Path, heads: int) -> None:
    train, held_out = tmp_path / "train.jsonl", tmp_path / "held_out.jsonl"
    taught = [{"prompt": asked(i), "chosen": f"it is {i} great", "rejected": f"it is {i}"} for i in range(48)]
    ties = [row | {"prompt": f"{row['prompt']} now", "preference": 0.5} for row in taught]
    gaps = {}
    for name, rows in (("taught", taught), ("with ties", taught[:8] + ties)):
        train.write_text("".join(json.dumps(row) + "\n" for row in rows))
        held_out.write_text("".join(json.dumps(row | {"prompt": "why?"}) + "\n" for row in (taught[0], ties[1])))
        texts = [text for row in rows for text in row.values() if isinstance(text, str)]
        model = str(make_small_model(tmp_path / f"start {name}", "llama", texts))
        config = RewardModelConfig(
            name="ties",
            scorer=ModelConfig(model=model, precision="fp32"),
            data=RowsConfig(dataset=str(train), eval_dataset=str(held_out), max_length=96),
            optimizer=OptimizerConfig(learning_rate=3e-3, global_batch=8, micro_batch=8, epochs=4),
            run=RunConfig(output=str(tmp_path / name), tracking="none"),
            trainer=TrainerConfig(best_metric=None),
            heads=heads,
        )
        train_pairwise(config)
        evaluation = json.loads((tmp_path / name / "evaluation.json").read_text())
        assert evaluation["metrics"]["pairs"] == 1, "the tie among the held-out rows is no pair to be right about"
        chat = Conversation((Turn("user", asked(7)),))
        scores = load_scorer(str(tmp_path / name / "model")).score([chat, chat], ["it is 7 great", "it is 7"])
        gaps[name] = float(scores[0] - scores[1])
    assert gaps["taught"] > 2
    assert gaps["with ties"] < gaps["taught"] / 2
