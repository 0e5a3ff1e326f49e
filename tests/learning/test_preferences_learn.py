"""Every loss over preferences learns a preference for polite words that was planted in pairs, or in thumbs.

Both replies to a question say the same; the chosen one has a polite phrase where the other has a neutral one. Questions
of held-out rows are in none that is trained on.
"""

import json
from pathlib import Path

import outside
import pytest
from test_planted_preference import TEST_PAIRS, TEST_THINGS, TRAIN_PAIRS, TRAIN_THINGS, polite_and_neutral, write_pairs

from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig, RunConfig, SamplesConfig
from preferences.config import LossConfig, PreferenceConfig
from preferences.train import train

LEARNED = 0.85  # fixed before the first run


@pytest.fixture(scope="module")
def polite(tmp_path_factory) -> tuple[Path, Path]:
    """Pairs to train on, and to evaluate on."""
    folder = tmp_path_factory.mktemp("polite")
    training = write_pairs(folder / "train.jsonl", TRAIN_THINGS, TRAIN_PAIRS, 0)
    return training, write_pairs(folder / "test.jsonl", TEST_THINGS, TEST_PAIRS, 1)


@pytest.mark.parametrize(
    ("loss", "lora_rank"),
    [
        ("dpo", 0),
        ("kto", 0),
        *(pytest.param(loss, 0, marks=pytest.mark.slow) for loss in ("ipo", "simpo", "orpo", "bon")),
        *(pytest.param(loss, 8, marks=pytest.mark.slow) for loss in ("dpo", "kto")),
    ],
)
def test_the_implicit_reward_prefers_what_people_preferred(
    loss, lora_rank: int, polite: tuple[Path, Path], small_models: dict[str, Path], tmp_path: Path
) -> None:
    train(
        PreferenceConfig(
            "polite",
            ModelConfig(str(small_models["llama"]), lora_rank=lora_rank, precision="fp32"),
            RowsConfig(str(polite[0]), eval_dataset=str(polite[1]), max_length=128),
            LossConfig(loss),
            optimizer=OptimizerConfig(learning_rate=2e-2 if lora_rank else 3e-3, epochs=3, global_batch=16),
            samples=SamplesConfig(sample_prompts=0),
            run=RunConfig(str(tmp_path / "run"), tracking="none", eval_updates=100, save_updates=-1),
        )
    )
    found = json.loads((tmp_path / "run/evaluation.json").read_text())
    measure = "auc" if loss == "kto" else "accuracy"
    assert found["metrics"][measure] >= LEARNED
    if loss not in ("simpo", "orpo"):  # the untrained policy's own log-probabilities are their rewards
        assert found["before"][measure] == 0.5
    policy = tmp_path / "run" / ("adapter" if lora_rank else "model")
    assert moved_to_polite(policy, small_models["llama"]) > 1


def moved_to_polite(policy: Path, start: Path) -> float:
    """Nats by which training moved the policy to polite replies from neutral ones, on texts that no row has."""
    polite, neutral = (outside.logprobs(policy, side) - outside.logprobs(start, side) for side in polite_and_neutral())
    return float((polite - neutral).mean())
