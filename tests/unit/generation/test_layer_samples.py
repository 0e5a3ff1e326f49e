"""Samples of a trainer's layers, and a server's layers that are compared with them: fused, adapted, stale, unused."""

import copy
import json

import pytest
import torch
from peft.tuners.lora import LoraLayer
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from lmgym.generation.layer_samples import RUN, RUNS, sample_layers
from lmgym.generation.vllm_plugin.lmgym_vllm import FAR, compare_layers, numbers_in, probe_vector
from lmgym.models.forward.decoder import Decoder
from lmgym.models.lora import add_lora

IDS = {"vocab_size": 97, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
SIZES = {
    "gpt2": {"n_layer": 2, "n_embd": 32, "n_head": 4},
    "qwen3": {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 48, "num_attention_heads": 4,
              "num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": True},
}  # fmt: skip


def make(family: str) -> nn.Module:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **IDS, **SIZES[family])).eval()
    for p in model.parameters():  # norms of ones would be alike
        p.data += 0.1 * torch.randn_like(p)
    return model


def distances(trained: nn.Module, served: nn.Module, dtype: torch.dtype = torch.float32) -> dict[str, float]:
    samples = sample_layers(Decoder(trained), dtype, seed=1)
    return compare_layers(served, json.loads(json.dumps(samples)), torch.device("cpu"))


@pytest.mark.parametrize("family", list(SIZES))
def test_each_trained_weight_is_sampled_and_found_in_an_equal_model(family: str) -> None:
    model = make(family)
    found = distances(model, copy.deepcopy(model))
    owners = {name.rpartition(".")[0] for name, _ in model.named_parameters()}
    assert {name.removesuffix(".weight").removesuffix(".bias") for name in found} >= owners
    assert "lm_head" in found, "though its weights are the embeddings'"
    assert max(found.values()) < 1e-5
    assert numbers_in("model.layers.11.experts.3.w1") == (11, 3)


def test_frozen_layers_are_left_out() -> None:
    model = make("qwen3").requires_grad_(False)
    model.model.layers[1].mlp.requires_grad_(True)
    names = [sample["name"] for sample in sample_layers(Decoder(model), torch.float32, 1)]
    assert names == [f"model.layers.1.mlp.{part}_proj" for part in ("gate", "up", "down")]


@pytest.mark.parametrize("name", [
    "model.layers.1.self_attn.v_proj", "model.layers.0.mlp.down_proj", "model.layers.1.input_layernorm.weight",
    "model.embed_tokens.weight",
])  # fmt: skip
def test_a_layer_that_was_not_sent_is_far(name: str) -> None:
    model = make("qwen3")
    served = copy.deepcopy(model)
    with torch.no_grad():
        for own, p in served.named_parameters():
            if own.startswith(name):
                p.mul_(0.5)
    far = {found for found, distance in distances(model, served).items() if distance > 0.1}
    tied = {"lm_head"} if "embed" in name else set()
    assert far == {name} | tied
    assert distances(model, served)[name] <= FAR < float("inf"), "what JSON can hold"


def test_layers_that_changed_places_are_far() -> None:
    model = make("qwen3")
    served = copy.deepcopy(model)
    served.model.layers = nn.ModuleList(reversed(served.model.layers))
    found = distances(model, served)
    assert all((distance > 0.1) == ("layers" in name) for name, distance in found.items())


class Fused(nn.Module):
    """What engines make of attention, one product for queries, keys and values, and a method for the head."""

    def __init__(self, model: nn.Module, packs: bool = False) -> None:
        super().__init__()
        self.layers, self.words = nn.ModuleList(), model.lm_head.weight
        for block in model.model.layers:
            attention = block.self_attn
            weight = torch.cat([attention.k_proj.weight, attention.q_proj.weight, attention.v_proj.weight])
            self.layers.append(Packed(weight.detach().clone(), packs))

    def compute_logits(self, states: torch.Tensor) -> torch.Tensor:
        return states @ self.words.t()


class Packed(nn.Module):
    """A product that may use a copy of its weights; it gives a bias beside its output, as vLLM's does."""

    def __init__(self, weight: torch.Tensor, packs: bool) -> None:
        super().__init__()
        self.weight, self.input_size = nn.Parameter(weight), weight.shape[1]
        self.used = weight.clone() if packs else self.weight

    def forward(self, states: torch.Tensor) -> tuple[torch.Tensor, None]:
        return states @ self.used.t(), None


def test_fused_layers_and_a_method_for_the_head_are_found() -> None:
    model = make("qwen3")
    found = distances(model, Fused(model))
    there = {name for name in found if name.endswith(("q_proj", "k_proj", "v_proj", "lm_head", "embed_tokens.weight"))}
    assert len(there) == 8
    assert all((distance < 1e-5) == (name in there) for name, distance in found.items())


def test_new_weights_of_a_layer_that_multiplies_by_an_old_copy_are_far() -> None:
    model = make("qwen3")
    served = Fused(model, packs=True)
    with torch.no_grad():
        for p in model.model.layers[0].self_attn.parameters():
            p.mul_(0.5)
        served.layers[0].weight.mul_(0.5)
    found = distances(model, served)
    assert found["model.layers.0.self_attn.q_proj"] > 0.1
    assert found["model.layers.1.self_attn.q_proj"] < 1e-5


def test_an_adapter_counts_with_its_scale() -> None:
    model = add_lora(make("qwen3"), rank=4, alpha=8, dropout=0.0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.normal_()
    served = copy.deepcopy(model)
    causal = model.get_base_model()
    found = distances(causal, copy.deepcopy(served).merge_and_unload())
    assert len(found) == 14, "each linear layer of two blocks, and no part of an adapter"
    assert max(found.values()) < 1e-5
    for layer in served.modules():
        if isinstance(layer, LoraLayer):
            layer.scaling = {name: 0.9 * value for name, value in layer.scaling.items()}
    assert min(distances(causal, served.merge_and_unload()).values()) > 0.02


def test_weights_in_16_bits_are_near_and_stored_ones_equal() -> None:
    model = make("qwen3")
    found = distances(model, copy.deepcopy(model).to(torch.bfloat16), torch.bfloat16)
    assert 1e-4 < max(found.values()) < 0.03
    assert all(distance == 0 for name, distance in found.items() if name.endswith(".weight"))


def test_a_sample_has_runs_that_fit_and_a_vector_without_a_period() -> None:
    samples = sample_layers(Decoder(make("gpt2")), torch.float32, 5)
    assert all([len(run) for run in sample["runs"]] == [RUN] * RUNS for sample in samples)
    assert probe_vector(3).tolist() == pytest.approx([0.5403023, -0.6536436, -0.9111303])
