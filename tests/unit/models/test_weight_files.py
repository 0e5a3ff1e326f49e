"""Names of weights are those that safetensors' own reader has, and a folder that cannot be read has none."""

import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoModelForSequenceClassification

from lmgym.models.weight_files import holds_head, weight_names


def names_by_safetensors(folder: Path) -> set[str]:
    names: set[str] = set()
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as content:
            names |= set(content.keys())
    return names


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3", "bert"])
def test_names_are_those_of_the_library_and_tell_a_scorer(family: str, small_models, scorer_folders) -> None:
    for folder, is_scorer in ((small_models[family], False), (scorer_folders[family], True)):
        names = weight_names(folder)
        assert names == names_by_safetensors(folder) != set()
        assert holds_head(names or set()) is is_scorer


def test_names_of_all_shards(scorer_folders, tmp_path: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(scorer_folders["llama"])
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len([*tmp_path.glob("*.safetensors")]) > 1
    assert weight_names(tmp_path) == weight_names(scorer_folders["llama"])


def test_metadata_is_no_weight_and_no_file_no_name(tmp_path: Path) -> None:
    assert weight_names(tmp_path) == set()
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK")
    assert weight_names(tmp_path) == set()
    save_file({"a.score.weight": torch.zeros(1)}, tmp_path / "model.safetensors", {"format": "pt"})
    assert weight_names(tmp_path) == {"a.score.weight"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x05",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00",
        (2).to_bytes(8, "little") + b"[]",
        (9).to_bytes(8, "little") + b'{"a": 1',
        (4).to_bytes(8, "little") + b"\xff\xfe{}",
        (60000).to_bytes(8, "little") + b'{"a":' * 12000,
    ],
    ids=["empty", "short", "pointer of git-lfs", "list", "cut off", "no text", "nested"],
)
def test_a_damaged_header_is_unknown(content: bytes, small_models, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    assert weight_names(tmp_path) is None
    (tmp_path / "other.safetensors").write_bytes((small_models["llama"] / "model.safetensors").read_bytes())
    assert weight_names(tmp_path) is None


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    assert weight_names(tmp_path) is None
