"""Damaged model folders: each is refused in one short line that names the file, and nothing in it is executed."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from lmgym.errors import InputError
from lmgym.models.forward.policies import load_policy
from lmgym.models.loading import load_tokenizer
from lmgym.text import tokenize_texts

DEEP = '{"a":' * 200_000 + "1" + "}" * 200_000
SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}
Damage = Callable[[Path], object]


def fields(file: str, **changed: Any) -> Damage:
    """Other values in a JSON file, which is made if it is not there."""

    def damage(folder: Path) -> None:
        path = folder / file
        content = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(content | changed))

    return damage


def text(file: str, content: str) -> Damage:
    return lambda folder: (folder / file).write_text(content)


def pattern(regex: str) -> Damage:
    """A first split by this regular expression."""

    def damage(folder: Path) -> None:
        content = json.loads((folder / "tokenizer.json").read_text())
        splits = [SPLIT | {"pattern": {"Regex": regex}}, content["pre_tokenizer"]]
        content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": splits}
        (folder / "tokenizer.json").write_text(json.dumps(content))

    return damage


def pickled_adapter(folder: Path) -> None:
    fields("adapter_config.json", peft_type="LORA", r=2, target_modules=["q_proj"])(folder)
    (folder / "adapter_model.bin").write_bytes(pickle.dumps({}))


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


CASES: dict[str, tuple[str, Damage]] = {
    "eos is an object": ("tokenizer_config.json", fields("tokenizer_config.json", eos_token={})),
    "eos is a number": ("tokenizer_config.json", fields("tokenizer_config.json", eos_token=3)),
    "eos in the map": ("special_tokens_map.json", fields("special_tokens_map.json", eos_token={})),
    "a map that is a list": ("special_tokens_map.json", text("special_tokens_map.json", "[]")),
    "a wrong type": ("tokenizer.json", fields("tokenizer.json", added_tokens={})),
    "a wrong model": ("tokenizer.json", fields("tokenizer.json", model={"type": "BPE", "vocab": [], "merges": 3})),
    "a list": ("tokenizer.json", text("tokenizer.json", "[]")),
    "no JSON": ("tokenizer.json", text("tokenizer.json", "{garbage")),
    "a wrong class": ("tokenizer_config.json", fields("tokenizer_config.json", tokenizer_class=3)),
    "a wrong length": ("tokenizer_config.json", fields("tokenizer_config.json", model_max_length="x")),
    "a pattern that backtracks": ("tokenizer.json", pattern("(a+)+$")),
    "a pattern over words": ("tokenizer.json", pattern(r"(\w+\s?)+$")),
    "a pattern that is none": ("tokenizer.json", pattern("((")),
    "a template": ("chat_template.jinja", text("chat_template.jinja", "{{ 1/0 }}")),
    "bytes": ("chat_template.jinja", lambda folder: (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")),
    "heads": ("config.json", fields("config.json", num_attention_heads=0)),
    "an activation": ("config.json", fields("config.json", hidden_act="frobnicate")),
    "cut weights": ("model.safetensors", cut_weights),
    "a pickled adapter": ("adapter_model.bin", pickled_adapter),
    "an adapter of a list": ("adapter_config.json", text("adapter_config.json", "[3]")),
    **{
        f"200,000 levels in {name}.json": (f"{name}.json", text(f"{name}.json", DEEP))
        for name in ("config", "tokenizer", "tokenizer_config", "special_tokens_map", "generation_config")
    },
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused_in_one_line_that_names_the_file(case: str, small_models, tmp_path: Path, capfd) -> None:
    file, damage = CASES[case]
    folder = Path(shutil.copytree(small_models["llama"], tmp_path / "m"))
    load_policy(str(folder), load_tokenizer(str(folder)))
    damage(folder)
    with pytest.raises(InputError) as caught:
        load_policy(str(folder), load_tokenizer(str(folder)))
    message = str(caught.value).replace(str(folder), "FOLDER")
    assert file in message
    assert "\n" not in message
    assert len(message) < 260
    assert capfd.readouterr().err == ""  # Rust's panics print a backtrace


def test_a_pattern_that_fails_on_a_text_alone_is_an_error_of_the_tokenizers_file(small_models, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(small_models["llama"], tmp_path / "m"))
    pattern("(z+)+$")(folder)
    tokenizer = load_tokenizer(str(folder))
    with pytest.raises(InputError, match=r"tokenizer.json fails on a text: .*retry-limit"):
        tokenize_texts(tokenizer, ["z" * 64 + "!"])


def test_a_hub_id_that_is_not_there_keeps_its_message(monkeypatch) -> None:
    monkeypatch.setattr("lmgym.models.sources.hub_has_address", lambda: False)
    with pytest.raises(InputError, match=r"no tokenizer loads from nobody/nothing: .*no folder .* is here") as caught:
        load_tokenizer("nobody/nothing")
    assert "\n" not in str(caught.value)


def test_a_shard_that_is_no_index_is_refused(small_models, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(small_models["llama"], tmp_path / "m"))
    weights = load_file(folder / "model.safetensors")
    save_file(weights, folder / "model-00001-of-00001.safetensors", {"format": "pt"})
    (folder / "model.safetensors").unlink()
    text("model.safetensors.index.json", '{"weight_map": 3}')(folder)
    with pytest.raises(InputError, match="no causal model loads from"):
        load_policy(str(folder), load_tokenizer(str(folder)))
