"""Weights in 4 or 8 bits: checks, arguments for transformers, sampling and merging, on a CPU.

Tests of merging need no bitsandbytes: integers of the shapes that it stores replace its weights.
"""

import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lmgym.config import ModelConfig, RunConfig
from lmgym.distributed.weights import Weights
from lmgym.errors import InputError
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling
from lmgym.models.forward.policies import load_policy
from lmgym.models.loading import load_classifier, load_tokenizer
from lmgym.models.lora import add_lora
from lmgym.models.memory import count_weights, estimate_memory
from lmgym.models.quantized import loading_arguments
from lmgym.models.saving import merge_adapters
from lmgym.training.plan import refuse_unfit_quantization
from ppo.config import PPOConfig
from ppo.train import train as train_ppo
from reward_models.config import RewardModelConfig
from reward_models.train import train_pairwise
from sft.config import SftConfig
from sft.tasks import CHAT
from sft.train import train as train_sft

IDS = torch.tensor([[5, 6, 7, 8, 9]])
ZERO2, ZERO3 = ({"zero_optimization": {"stage": stage}} for stage in (2, 3))
STAGES: dict[str, Callable[[ModelConfig, RunConfig], object]] = {
    "reward models": lambda model, run: train_pairwise(RewardModelConfig("r", model, run=run)),
    "sft": lambda model, run: train_sft(SftConfig("s", model, run=run), CHAT),
    "ppo": lambda model, run: train_ppo(PPOConfig("p", model, run=run), pytest.fail),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("bits", [4, 8])
def test_every_stage_refuses_quantised_weights_before_anything_is_loaded(
    stage: str, bits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "bitsandbytes" else found(name))
    asked = ModelConfig("./nowhere", lora_rank=4, load_in_4bit=bits == 4, load_in_8bit=bits == 8)
    run = RunConfig(str(tmp_path / "run"), tracking="none")
    with pytest.raises(InputError) as refused:
        STAGES[stage](asked, run)
    message = str(refused.value)
    needed = "needed: pip install 'lmgym[quantized]', or leave it out"
    assert message == f"--load_in_{bits}bit needs bitsandbytes; {needed}"
    with pytest.raises(InputError, match=rf"^--load_in_{bits}bit with --lora_rank 0: quantised weights cannot be tra"):
        STAGES[stage](replace(asked, lora_rank=0), run)
    with pytest.raises(InputError, match=r"^found both --load_in_4bit and --load_in_8bit"):
        STAGES[stage](replace(asked, load_in_4bit=True, load_in_8bit=True), run)


def test_quantised_weights_need_bitsandbytes_and_not_zero_3(monkeypatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found("json" if name == "bitsandbytes" else name))
    asked = ModelConfig(lora_rank=4, load_in_4bit=True)
    for deepspeed in (None, ZERO2):
        refuse_unfit_quantization(asked, deepspeed)
    with pytest.raises(InputError, match=r"^--load_in_4bit under ZeRO-3, .*; needed: --deepspeed zero2"):
        refuse_unfit_quantization(asked, ZERO3)
    refuse_unfit_quantization(ModelConfig(), ZERO3)


def test_transformers_gets_settings_for_nf4_in_bf16_or_8_bits(monkeypatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.49.0")
    assert loading_arguments(4)["device_map"] == {"": "cpu"}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    four, eight = loading_arguments(4), loading_arguments(8)
    assert four["device_map"] == eight["device_map"] == {"": 3}
    settings = four["quantization_config"]
    assert (settings.load_in_4bit, settings.bnb_4bit_quant_type, settings.bnb_4bit_use_double_quant) == (
        True, "nf4", True,
    )  # fmt: skip
    assert settings.bnb_4bit_compute_dtype == torch.bfloat16
    assert eight["quantization_config"].load_in_8bit
    assert not eight["quantization_config"].load_in_4bit
    assert loading_arguments(0) == {}
    assert [ModelConfig(load_in_4bit=a, load_in_8bit=b).bits for a, b in ((1, 0), (0, 1), (0, 0))] == [4, 8, 0]


def stored_in(bits: int, state: Weights) -> Weights:
    """A state dict in which bitsandbytes stores the adapted layers' own weights."""
    stored = {}
    for name, value in state.items():
        if not name.endswith(("base_layer.weight", "_proj.weight")):
            stored[name] = value
        elif bits == 4:
            stored[name] = torch.zeros(value.numel() // 2, 1, dtype=torch.uint8)
            stored |= {f"{name}.absmax": torch.ones(4), f"{name}.quant_map": torch.ones(16)}
            stored[f"{name}.quant_state.bitsandbytes__nf4"] = torch.zeros(80, dtype=torch.uint8)
        else:
            stored |= {name: torch.zeros_like(value, dtype=torch.int8), name.replace("weight", "SCB"): torch.ones(8)}
    return stored


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("kind", ["policy", "classifier"])
def test_merging_takes_the_bases_weights_from_its_folder(bits: int, kind: str, small_models) -> None:
    folder = str(small_models["llama"])
    tokenizer = load_tokenizer(folder)
    tokenizer.add_tokens(["<|new|>"])  # the live model has a row more than its folder
    base = load_policy(folder, tokenizer) if kind == "policy" else load_classifier(folder, tokenizer)[0]
    model = add_lora(base, 4, 8, 0.0, "all-linear" if kind == "policy" else "q_proj,up_proj").eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in (p for p in model.parameters() if p.requires_grad):
            parameter.add_(torch.randn_like(parameter) * 0.2)
        expected = model(IDS).logits
    # a layer without an adapter is quantised too, and has no base_layer
    state = stored_in(bits, {name: value.clone() for name, value in model.state_dict().items()})
    base.is_quantized = True
    whole, weights = merge_adapters(model, state)
    with torch.no_grad():
        torch.testing.assert_close(whole.eval()(IDS).logits, expected, rtol=0, atol=1e-5)
    assert {value.dtype for value in weights.values()} == {torch.float32}
    assert whole.get_input_embeddings().weight.shape[0] == len(tokenizer)
    assert getattr(whole.config, "quantization_config", None) is None


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_quantised_policy_samples_near_its_own_weights_and_merges_into_those_of_its_folder(
    bits: int, family: str, small_models
) -> None:
    pytest.importorskip("bitsandbytes")
    folder = str(small_models[family])
    tokenizer = load_tokenizer(folder)
    exact, base = load_policy(folder, tokenizer), load_policy(folder, tokenizer, bits=bits)
    layer = base.model.layers[0].mlp.up_proj.weight
    assert layer.dtype == (torch.uint8 if bits == 4 else torch.int8)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        apart = (base(IDS).logits.float() - exact(IDS).logits.float()).abs().mean()
    assert 0 < apart < 0.3 * exact(IDS).logits.std()
    model = add_lora(base, 4, 8, 0.0).eval()
    generator = LocalGenerator(model.get_base_model(), tokenizer, autocast=torch.bfloat16)
    [[reply]] = generator.generate([IDS[0].tolist()], 1, Sampling(6, seed=0, ends_at_eos=False))
    assert len(reply.ids) == 6
    whole, _ = merge_adapters(model, model.state_dict())
    with torch.no_grad():  # adapters that have not learned add nothing
        torch.testing.assert_close(whole.eval()(IDS).logits, exact(IDS).logits)


def test_the_estimate_counts_frozen_weights_in_bits(small_models) -> None:
    policy = load_policy(str(small_models["llama"]), load_tokenizer(str(small_models["llama"])))
    settings = ModelConfig(lora_rank=2)
    everything, trained, *_ = count_weights(policy.config, settings, causal=True)
    words = 512 * 32  # embeddings in fp32, a head in bf16
    for bits in (4, 8):
        asked = replace(settings, load_in_4bit=bits == 4, load_in_8bit=bits == 8)
        found = estimate_memory(policy.config, 100, asked, None, 1, causal=True)
        assert found.weights == 4 * (trained + words) + 2 * words + (everything - trained - 2 * words) * bits / 8
        plain = estimate_memory(policy.config, 100, settings, None, 1, causal=True)
        assert (found.gradients, found.optimizer) == (plain.gradients, plain.optimizer)


def test_a_quantised_layer_does_not_train_in_full(small_models) -> None:
    policy = load_policy(str(small_models["llama"]), load_tokenizer(str(small_models["llama"])))
    layer = policy.model.layers[0].mlp.up_proj
    whole, layer.weight = layer.weight, torch.nn.Parameter(torch.zeros(8, dtype=torch.uint8), requires_grad=False)
    with pytest.raises(InputError, match=r"--modules_to_save: layers\.0\.mlp\.up_proj is quantised and"):
        add_lora(policy, 2, 4, 0.0, "q_proj", "layers.0.mlp.up_proj")
    layer.weight = whole
    add_lora(policy, 2, 4, 0.0, "q_proj", "layers.0.mlp.up_proj")
