"""Adapters on the requested layers, modules trained in full along with them, and how both are saved."""

import warnings
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from lmgym.config import ModelConfig, check_shared_settings
from lmgym.distributed.weights import load_weights, save_weights
from lmgym.errors import InputError
from lmgym.models.forward.policies import load_policy, merged_copy, save_policy
from lmgym.models.loading import load_classifier, load_tokenizer
from lmgym.models.lora import add_lora
from lmgym.models.memory import count_weights
from lmgym.models.parameters import count_parameters
from lmgym.models.saving import save_classifier
from lmgym.models.small_models import build_model
from ppo.check import check_models
from ppo.config import PPOConfig
from ppo.setup import adapted
from preferences.config import PreferenceConfig
from reward_models.config import RewardModelConfig
from sft.config import SftConfig

IDS = torch.tensor([[5, 6, 7, 8, 9, 10]])
SIZE = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.fixture(scope="module")
def tied_llama(small_models, tmp_path_factory) -> Path:
    """A Llama whose head is its embeddings, as the small ones of its kind are."""
    folder, tokenizer = tmp_path_factory.mktemp("tied"), load_tokenizer(str(small_models["llama"]))
    build_model("llama", tokenizer, "causal", tie_word_embeddings=True, **SIZE).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def policy_of(folder: Path):
    return load_policy(str(folder), load_tokenizer(str(folder)))


def adapted_layers(model) -> set[str]:
    return {name.split(".lora_")[0].removeprefix("base_model.model.") for name in trainable(model) if ".lora_" in name}


def trainable(model) -> Mapping[str, torch.Tensor]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def shake(model) -> None:
    """Moves all that trains."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in trainable(model).values():
            parameter.add_(torch.randn_like(parameter) * 0.2)


def test_adapters_are_on_the_named_layers_and_no_others(small_models) -> None:
    by_name = add_lora(policy_of(small_models["llama"]), 2, 4, 0.0, "q_proj, v_proj")
    assert adapted_layers(by_name) == {f"model.layers.{i}.self_attn.{n}_proj" for i in (0, 1) for n in "qv"}
    [one] = adapted_layers(add_lora(policy_of(small_models["llama"]), 2, 4, 0.0, "layers.1.mlp.up_proj"))
    assert one == "model.layers.1.mlp.up_proj"


@pytest.mark.parametrize("pattern", [r".*layers\.1\..*", r"model\.layers\.1\..*"])
def test_a_regular_expression_selects_the_linear_layers_that_it_matches(pattern: str, small_models) -> None:
    found = adapted_layers(add_lora(policy_of(small_models["llama"]), 2, 4, 0.0, pattern))
    assert len(found) == 7  # of layer 1: four in attention, three in the MLP; not the modules around them
    assert all(name.startswith("model.layers.1.") for name in found)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_name_that_matches_nothing_is_refused_with_the_existing_names(family: str, small_models) -> None:
    there = "c_attn, c_fc, c_proj, lm_head" if family == "gpt2" else "down_proj, gate_proj, k_proj, lm_head, o_proj"
    for targets, found in (("q_proj,wrong", "wrong"), ("self_attn", "self_attn"), (r".*wrong\d", r".*wrong\d")):
        if family == "gpt2" and "," in targets:
            targets = "c_attn,wrong"
        with pytest.raises(InputError) as refused:
            add_lora(policy_of(small_models[family]), 2, 4, 0.0, targets)
        message = str(refused.value)
        assert f"--lora_target_modules: {found!r} matches no linear layer; there are {there}" in message
        assert "\n" not in message
    with pytest.raises(InputError, match=r"--lora_target_modules: '\(' is not a regular expression: missing \)"):
        add_lora(policy_of(small_models[family]), 2, 4, 0.0, "(")
    with pytest.raises(InputError, match=r"--modules_to_save: 'wrong' is not a module; there are "):
        add_lora(policy_of(small_models[family]), 2, 4, 0.0, "all-linear", "wrong")


@pytest.mark.parametrize("whole", ["embed_tokens", "lm_head", "embed_tokens,lm_head", "norm"])
def test_modules_to_save_train_in_full_and_are_in_every_form_of_the_saved_model(
    whole: str, small_models, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(str(small_models["llama"]))
    model = add_lora(policy_of(small_models["llama"]), 2, 4, 0.0, "q_proj", whole).eval()
    full = {n.split(".modules_to_save")[0].rsplit(".", 1)[-1] for n in trainable(model) if "lora_" not in n}
    assert full == set(whole.split(","))
    check_saved_forms(model, tokenizer, small_models["llama"], tmp_path)


def test_adapters_are_added_and_merged_without_warnings(small_models, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(small_models["llama"]))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model = add_lora(policy_of(small_models["llama"]), 2, 4, 0.0)
        save_policy(model, model.state_dict(), tmp_path, tokenizer, merge=True)
    assert not [str(warning.message) for warning in found]


def check_saved_forms(model, tokenizer, source: Path, tmp_path: Path) -> None:
    """A copy, the merged folder and the adapter on its base give the model's logits, and not the base's."""
    before = model(IDS).logits
    shake(model)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    # as DeepSpeed's and ZeRO-3's gathering gives them: each tied weight once
    once = {name: state[name] for name, _ in (*model.named_parameters(), *model.named_buffers()) if name in state}
    with torch.no_grad():
        expected = model(IDS).logits
        assert (expected - before).abs().max() > 0.03  # three hundred times the tolerance
        for weights in (state, once):
            torch.testing.assert_close(merged_copy(model, weights)(IDS).logits, expected, rtol=0, atol=1e-4)
            folder = save_policy(model, weights, tmp_path, tokenizer, merge=True)
            merged = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
            assert merged.config.tie_word_embeddings == model.config.tie_word_embeddings
            torch.testing.assert_close(merged(IDS).logits, expected, rtol=0, atol=1e-4)
            beside = AutoModelForCausalLM.from_pretrained(tmp_path / "adapter").eval()
            torch.testing.assert_close(beside(IDS).logits, expected, rtol=0, atol=1e-4)
        with model.disable_adapter():
            torch.testing.assert_close(model(IDS).logits, policy_of(source)(IDS).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("whole", ["embed_tokens", "lm_head", "embed_tokens,lm_head"])
def test_tied_embeddings_and_head_train_as_one_and_stay_tied(whole: str, tied_llama: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(tied_llama))
    model = add_lora(policy_of(tied_llama), 2, 4, 0.0, "q_proj", whole).eval()
    assert len([name for name in trainable(model) if "lora_" not in name]) == 1
    base = model.get_base_model()
    assert base.get_input_embeddings().weight is base.get_output_embeddings().weight
    check_saved_forms(model, tokenizer, tied_llama, tmp_path)
    assert base.get_input_embeddings().weight is base.get_output_embeddings().weight


@pytest.mark.parametrize("whole", ["wte", "lm_head"])
def test_tied_embeddings_train_as_one_under_any_name(whole: str, small_models, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(small_models["gpt2"]))
    model = add_lora(policy_of(small_models["gpt2"]), 2, 4, 0.0, "c_attn", whole).eval()
    assert [name for name in trainable(model) if "lora_" not in name] == [
        "base_model.model.transformer.wte.modules_to_save.default.weight"
    ]
    check_saved_forms(model, tokenizer, small_models["gpt2"], tmp_path)


@pytest.mark.parametrize("tied", [True, False])
def test_a_checkpoint_restores_adapters_and_modules_trained_in_full(
    tied: bool, tied_llama: Path, small_models, tmp_path: Path
) -> None:
    source = tied_llama if tied else small_models["llama"]
    model, again = (add_lora(policy_of(source), 2, 4, 0.0, "q_proj", "embed_tokens,norm").eval() for _ in range(2))
    shake(model)
    save_weights(model, tmp_path / "model.safetensors")  # as lmgym/training/trainer_state.py
    load_weights(again, tmp_path / "model.safetensors")
    with torch.no_grad():
        assert torch.equal(again(IDS).logits, model(IDS).logits)


@pytest.mark.parametrize("targets", ["lm_head", "embed_tokens", ".*head"])
def test_an_adapter_on_one_of_two_tied_modules_is_refused(targets: str, tied_llama: Path) -> None:
    with pytest.raises(InputError, match=r"shares its weights with .*; needed: .*--modules_to_save embed_tokens"):
        add_lora(policy_of(tied_llama), 2, 4, 0.0, targets)


def test_a_classifiers_head_trains_in_full_along_with_named_modules(small_models, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(small_models["llama"]))
    base, _ = load_classifier(str(small_models["llama"]), tokenizer)
    model = add_lora(base, 2, 4, 0.0, "q_proj", "embed_tokens").eval()
    full = {n.split(".modules_to_save")[0].rsplit(".", 1)[-1] for n in trainable(model) if "lora_" not in n}
    assert full == {"score", "embed_tokens"}
    shake(model)
    with torch.no_grad():
        expected = model(IDS).logits
        save_classifier(model, model.state_dict(), tmp_path / "m", tokenizer, {"reduce": "logit"})
        merged, _ = load_classifier(str(tmp_path / "m"), tokenizer, fresh_head=False)
        torch.testing.assert_close(merged.eval()(IDS).logits, expected, rtol=0, atol=1e-5)


def test_frozen_modules_cannot_be_trained_in_full(small_models) -> None:
    policy = policy_of(small_models["llama"])
    policy.get_input_embeddings().requires_grad_(False)
    with pytest.raises(InputError, match="--modules_to_save: embed_tokens is frozen by --freeze_embeddings"):
        add_lora(policy, 2, 4, 0.0, "q_proj", "embed_tokens")


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3"])
def test_trained_weights_are_counted_and_wrong_names_refused_before_weights_are_read(family: str, small_models) -> None:
    policy = policy_of(small_models[family])
    settings = ModelConfig(
        lora_rank=3, lora_target_modules="c_attn" if family == "gpt2" else "q_proj,up_proj", modules_to_save="lm_head"
    )
    counted = count_weights(policy.config, settings, causal=True)
    model = add_lora(policy, 3, 4, 0.0, settings.lora_target_modules, settings.modules_to_save)
    # a module that trains in full is there twice
    assert counted[:2] == tuple(reversed(count_parameters(model)))
    with pytest.raises(InputError, match="'wrong' matches no linear layer"):
        count_weights(policy.config, ModelConfig(lora_rank=3, lora_target_modules="wrong"), causal=True)


def test_ppo_refuses_wrong_module_names_before_the_policy_is_loaded(small_models) -> None:
    tokenizer = load_tokenizer(str(small_models["llama"]))
    settings = ModelConfig(str(small_models["llama"]), lora_rank=2, lora_target_modules="wrong", precision="fp32")
    with pytest.raises(InputError, match="--lora_target_modules: 'wrong' matches no linear layer"):
        check_models(PPOConfig("p", settings), tokenizer)
    fit = ModelConfig(settings.model, lora_rank=2, lora_target_modules="q_proj", modules_to_save="norm")
    actor, _ = adapted(PPOConfig("p", fit), policy_of(small_models["llama"]))
    assert {name.rsplit(".", 1)[-1] for name in adapted_layers(actor.policy)} == {"q_proj"}
    assert [name for name in trainable(actor.policy) if "modules_to_save" in name]


@pytest.mark.parametrize(
    "config",
    [SftConfig("s"), RewardModelConfig("r"), PreferenceConfig("d"), PPOConfig("p")],
    ids=["sft", "reward", "preference", "ppo"],
)
@pytest.mark.parametrize("setting", [{"lora_target_modules": "q_proj"}, {"modules_to_save": "lm_head"}])
def test_settings_of_adapters_without_adapters_are_refused(config, setting: dict[str, str]) -> None:
    [name] = setting
    with pytest.raises(InputError, match=rf"^{name}='{setting[name]}'; needed: .*--lora_rank"):
        check_shared_settings(config, ModelConfig(**setting))
    check_shared_settings(config, ModelConfig(lora_rank=2, **setting))


def test_layers_that_peft_refuses_get_no_adapter_and_are_refused_by_name(small_models) -> None:
    tokenizer = load_tokenizer(str(small_models["llama"]))
    mamba = build_model("mamba", tokenizer, "causal", num_hidden_layers=2, hidden_size=16, state_size=4)
    needed = "peft puts no adapter on .*out_proj of a mamba; needed: some of dt_proj, in_proj, lm_head, x_proj"
    with pytest.raises(InputError, match=needed):
        add_lora(mamba, 2, 4, 0.0, "in_proj,out_proj")
    names = {name.rpartition(".")[2] for name in adapted_layers(add_lora(mamba, 2, 4, 0.0))}
    assert names == {"dt_proj", "in_proj", "x_proj"}
