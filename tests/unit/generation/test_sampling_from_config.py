"""The sampling of a model: from its generation config, else the default, and its display."""

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, GenerationConfig

from lmgym.errors import InputError
from lmgym.generation.protocol import Sampling, sampling_from_config

DEFAULT = Sampling(128, temperature=0.9, top_p=0.95, seed=3)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.9}, Sampling(128, 0.6, top_p=0.9, seed=3)),
        ({"temperature": 0.6}, Sampling(128, 0.6, seed=3)),  # what it leaves out is neutral, not the default
        ({"do_sample": True}, Sampling(128, seed=3)),
        (
            {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.1},
            Sampling(128, 0.7, 20, 0.8, 1.1, seed=3),
        ),
    ],
)
def test_the_settings_of_a_generation_config_are_used(said: dict, expected: Sampling) -> None:
    assert sampling_from_config(GenerationConfig(**said), DEFAULT) == (expected, "generation_config.json")


@pytest.mark.parametrize("config", [None, GenerationConfig(), GenerationConfig(eos_token_id=2, max_length=99)])
def test_a_generation_config_without_settings_leaves_the_defaults(config: GenerationConfig | None) -> None:
    assert sampling_from_config(config, DEFAULT) == (DEFAULT, "defaults")


def test_settings_are_read_from_the_file_of_a_model(small_models: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(small_models["llama"], tmp_path / "model")
    file = tmp_path / "model/generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"do_sample": True, "temperature": 0.6}))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert sampling_from_config(model.generation_config, DEFAULT)[0].temperature == 0.6


def test_settings_out_of_bounds_are_refused() -> None:
    config = GenerationConfig()
    config.top_p = 7.0
    with pytest.raises(InputError, match=r"generation_config.json of the model: top_p=7.0; needed: above 0"):
        sampling_from_config(config, DEFAULT)


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        (Sampling(), "temperature 1"),
        (Sampling(temperature=0.6, top_p=0.9, top_k=20), "temperature 0.6, top_p 0.9, top_k 20"),
        (Sampling(temperature=0, top_p=0.9, repetition_penalty=1.1), "greedy, repetition_penalty 1.1"),
    ],
)
def test_a_sampling_is_displayed_with_the_settings_in_use(sampling: Sampling, words: str) -> None:
    assert str(sampling) == words
