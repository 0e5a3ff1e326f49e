"""Numbers of a model's config, under whatever name; what a config does not say is named with the model."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import AutoConfig

from lmgym.errors import InputError
from lmgym.models.config_fields import context_length, head_count, layer_count, vocabulary_size, width
from lmgym.models.loading import load_config

SIZES = {
    "gpt2": {"n_layer": 3, "n_embd": 32, "n_head": 4, "n_positions": 77},
    "llama": {"num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 4, "max_position_embeddings": 77},
    "gpt_neox": {"num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 4, "max_position_embeddings": 77},
    "mpt": {"n_layers": 3, "d_model": 32, "n_heads": 4, "max_seq_len": 77},
    "bloom": {"n_layer": 3, "hidden_size": 32, "n_head": 4, "seq_length": 77},
}


@pytest.mark.parametrize("family", SIZES)
def test_sizes_are_read_under_each_familys_names(family: str) -> None:
    config = AutoConfig.for_model(family, vocab_size=50, **SIZES[family])
    found = (layer_count(config), width(config), head_count(config), vocabulary_size(config), context_length(config))
    assert found == (3, 32, 4, 50, 77)


def test_a_model_that_names_no_limit_reads_any_length() -> None:
    assert head_count(AutoConfig.for_model("mamba")) is None
    for family in ("mamba", "xlnet"):  # xlnet's says -1
        assert context_length(AutoConfig.for_model(family)) == 1 << 30


def test_an_error_names_the_missing_field_and_the_model() -> None:
    config = SimpleNamespace(model_type="odd", name_or_path="me/odd", n_layer=None, hidden_size="wide")
    cases = {
        layer_count: "has no num_hidden_layers", width: "says 'wide' for hidden_size",
        vocabulary_size: "has no vocab_size",
    }  # fmt: skip
    for read, field in cases.items():
        with pytest.raises(InputError) as refused:
            read(config)
        assert str(refused.value) == f"the config of me/odd (odd) {field}; needed: a number above 0"


@pytest.mark.parametrize(
    ("family", "field", "value", "message"),
    [
        # without it transformers would make one of 32 layers, or of 4,096 numbers
        ("llama", "num_hidden_layers", ..., "(llama) has no num_hidden_layers; needed"),
        ("llama", "hidden_size", ..., "(llama) has no hidden_size; needed"),
        ("gpt2", "n_layer", ..., "(gpt2) has no n_layer; needed"),
        ("gpt2", "n_embd", ..., "(gpt2) has no n_embd; needed"),
        ("llama", "num_hidden_layers", -3, "(llama) says -3 for num_hidden_layers; needed"),
        ("llama", "hidden_size", None, "cannot be read: Validation error for field 'hidden_size'"),
        ("llama", "vocab_size", "many", "cannot be read: Validation error for field 'vocab_size'"),
        ("llama", "num_attention_heads", 7, "cannot be read: Class validation error"),
    ],
)
def test_a_folder_whose_config_lacks_a_field_or_has_nonsense_in_it_is_refused_in_one_line(
    family: str, field: str, value: object, message: str, small_models: dict[str, Path], tmp_path: Path
) -> None:
    config = json.loads((small_models[family] / "config.json").read_text())
    if value is ...:
        del config[field]
    else:
        config[field] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError) as refused:
        load_config(str(tmp_path))
    assert f"the config of {tmp_path} " in str(refused.value)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_config_without_a_context_length_is_accepted(small_models: dict[str, Path], tmp_path: Path) -> None:
    config = json.loads((small_models["llama"] / "config.json").read_text())
    del config["max_position_embeddings"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_config(str(tmp_path)).model_type == "llama"


@pytest.mark.parametrize("field", ["attn_implementation", "experts_implementation", "of_tomorrow_implementation"])
@pytest.mark.parametrize("value", ["evil/kernel", "evil/kernel@v1:forward", {"": "eager", "inner": "evil/kernel"}])
@pytest.mark.parametrize("inside", [False, True])
def test_code_of_a_repository_that_a_config_takes_attention_from_is_refused(
    small_models: dict[str, Path], tmp_path: Path, field: str, value: object, inside: bool
) -> None:
    config = json.loads((small_models["llama"] / "config.json").read_text())
    planted = {"text_config": {field: value}} if inside else {field: value}
    (tmp_path / "config.json").write_text(json.dumps(config | planted))
    with pytest.raises(InputError, match=rf"config.json names evil/kernel.* as its {field}, code of a repo"):
        load_config(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(config | {"attn_implementation": "eager"}))
    load_config(str(tmp_path))
