"""The weights of a checkpoint: all of a model, and of one with adapters the trained ones."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lmgym.distributed.weights import accepting_checkpoints, base_weights, load_weights, save_weights, without_base


class Tied(torch.nn.Module):
    """Embeddings that are the head too; with `adapted` they are frozen below an adapter, as peft leaves a model."""

    def __init__(self, adapted: bool) -> None:
        super().__init__()
        self.words, self.head = torch.nn.Embedding(8, 4), torch.nn.Linear(4, 8, bias=False)
        self.head.weight = self.words.weight
        self.lora_A = torch.nn.Linear(4, 2, bias=False)
        self.register_buffer("steps", torch.zeros(1))
        if adapted:
            self.peft_config = {"default": None}
            self.words.requires_grad_(False)


def test_a_model_without_adapters_is_saved_whole_each_weight_once(tmp_path: Path) -> None:
    model, again = Tied(False), Tied(False)
    save_weights(model, tmp_path / "w.safetensors")
    assert {*load_file(tmp_path / "w.safetensors")} == {"words.weight", "lora_A.weight", "steps"}
    load_weights(again, tmp_path / "w.safetensors")
    assert torch.equal(again.head.weight, model.words.weight)
    with without_base(model) as has_base:
        assert not has_base
        assert len(model.state_dict()) == 4


def test_of_adapters_the_trained_weights_are_saved_and_the_others_stay_as_they_were_loaded(tmp_path: Path) -> None:
    model, again = Tied(True), Tied(True)
    assert base_weights(model) == {"words.weight", "head.weight"}
    save_weights(model, tmp_path / "w.safetensors")
    assert {*load_file(tmp_path / "w.safetensors")} == {"lora_A.weight", "steps"}
    before = again.words.weight.clone()
    load_weights(again, tmp_path / "w.safetensors")
    assert torch.equal(again.lora_A.weight, model.lora_A.weight)
    assert torch.equal(again.words.weight, before)
    with without_base(model) as has_base:
        assert has_base
        assert {*model.state_dict()} == {"lora_A.weight", "steps"}
    assert len(model.state_dict()) == 4
    with accepting_checkpoints(again):
        again.load_state_dict(model.state_dict())  # as earlier versions saved it
    assert torch.equal(again.words.weight, model.words.weight)


@pytest.mark.parametrize("adapted", [True, False])
def test_a_weight_that_is_missing_or_unknown_is_an_error(adapted: bool, tmp_path: Path) -> None:
    model = Tied(adapted)
    save_weights(model, tmp_path / "w.safetensors")
    weights = load_file(tmp_path / "w.safetensors")
    save_file(weights | {"more": torch.ones(1)}, tmp_path / "more.safetensors")
    save_file({n: w for n, w in weights.items() if n != "lora_A.weight"}, tmp_path / "less.safetensors")
    for name in ("more", "less"):
        with pytest.raises(RuntimeError, match=r"more|lora_A"):
            load_weights(Tied(adapted), tmp_path / f"{name}.safetensors")
