"""Counts of weights and estimates of memory, as by hand; runs that do not fit are refused."""

from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig
from transformers.utils import TRANSFORMERS_DYNAMIC_MODULE_NAME

from lmgym.config import ModelConfig
from lmgym.errors import InputError
from lmgym.models.activations import activation_bytes
from lmgym.models.classifiers import round_frozen_weights
from lmgym.models.config_fields import vocabulary_size, width
from lmgym.models.loading import load_classifier, load_tokenizer
from lmgym.models.lora import add_lora
from lmgym.models.memory import (
    CHUNK_LOGITS,
    GIB,
    MemoryEstimate,
    check_memory,
    count_weights,
    estimate_memory,
    refuse_absent_modules,
    weight_memory,
)
from lmgym.models.parameters import count_parameters

FAMILIES = ("gpt2", "llama", "qwen3", "bert")


def ten_million() -> AutoConfig:
    return AutoConfig.for_model(
        "llama", vocab_size=16384, hidden_size=256, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=688, num_labels=1, pad_token_id=0,
    )  # fmt: skip


# embeddings 16384 * 256; a layer: q and o 2 * 256^2, k and v 2 * 256 * 128, MLP 3 * 256 * 688, norms 2 * 256; a last
# norm and the head 2 * 256
WEIGHTS = 4_194_304 + 8 * (131_072 + 65_536 + 528_384 + 512) + 512


def test_weights_are_counted_as_by_hand_and_as_in_the_model_itself(small_models) -> None:
    assert WEIGHTS == 9_998_848
    assert count_weights(ten_million()) == (WEIGHTS, WEIGHTS, 0, 0)
    for family in FAMILIES:
        tokenizer = load_tokenizer(str(small_models[family]))
        model, _ = load_classifier(str(small_models[family]), tokenizer)
        everything = sum(p.numel() for p in model.parameters())
        assert count_weights(model.config) == (everything, everything, 0, 0)
        lora = add_lora(model, 4, 16, 0.0)
        trainable, everything = count_parameters(lora)
        assert count_weights(model.config, ModelConfig(lora_rank=4))[:2] == (everything, trainable)


def test_frozen_linear_layers_count_two_bytes_a_weight_in_bf16_without_deepspeed() -> None:
    """And four in fp32; adapters of rank 1, a layer: q and o 512 each, k and v 384, three of the MLP 944; the head."""
    settings, adapters = ModelConfig(lora_rank=1), 8 * (2 * 512 + 2 * 384 + 3 * 944)
    linear = 8 * (131_072 + 65_536 + 528_384)
    counts = count_weights(ten_million(), settings)
    assert counts == (WEIGHTS + adapters + 256, adapters + 256, linear + 256, 0)  # heads: one trained, one not
    found = estimate_memory(ten_million(), 1000, settings, None, 1)
    assert found.weights == 2 * (linear + 256) + 4 * (counts.total - linear - 256)
    exact = replace(settings, precision="fp32")
    assert estimate_memory(ten_million(), 1000, exact, None, 1).weights == 4 * counts.total


@pytest.mark.parametrize(("family", "counted"), [("llama", True), ("gpt2", True), ("gemma2", False)])
@pytest.mark.parametrize("tied", [True, False])
def test_frozen_embeddings_of_a_checkpoint_in_bf16_count_two_bytes_without_deepspeed(
    family: str, counted: bool, tied: bool
) -> None:
    """Not those of Gemma, which stay in fp32. A tied head is the embeddings themselves."""
    lora = ModelConfig(lora_rank=1)
    stated = {
        dtype: AutoConfig.for_model(family, pad_token_id=0, dtype=dtype, tie_word_embeddings=tied, num_hidden_layers=2)
        for dtype in ("float32", "float16", "bfloat16", None)
    }
    words = vocabulary_size(stated[None]) * width(stated[None])
    for settings, deepspeed, fewer in (
        (lora, None, 2 * words * counted),
        (lora, {}, 0),  # DeepSpeed has all of it in bf16 in any case
        (replace(lora, precision="fp32"), None, 0),
        (replace(lora, load_in_4bit=True), None, 2 * words * counted),
        (ModelConfig(), None, 0),
    ):
        counts = {dtype: count_weights(config, settings, causal=True) for dtype, config in stated.items()}
        assert counts[None] == counts["float32"] == counts["float16"] == count_weights(stated[None], settings, True)
        plain, rounded = (
            estimate_memory(stated[dtype], 100, settings, deepspeed, 1, causal=True, counts=counts[dtype])
            for dtype in (None, "bfloat16")
        )
        assert plain.weights - rounded.weights == fewer
        assert replace(plain, weights=0) == replace(rounded, weights=0)


@pytest.mark.parametrize("tied", [True, False])
def test_the_estimate_counts_the_bytes_that_a_run_with_adapters_holds(tied: bool) -> None:
    config = AutoConfig.for_model(
        "llama", vocab_size=4096, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        pad_token_id=0, tie_word_embeddings=tied, dtype="bfloat16",
    )  # fmt: skip
    counts = count_weights(config, ModelConfig(lora_rank=2), causal=True)
    model = add_lora(AutoModelForCausalLM.from_config(config).float(), 2, 4, 0.0)
    round_frozen_weights(model)
    assert weight_memory(counts, "bf16", None, 1).weights == sum(p.nbytes for p in model.parameters())


@pytest.mark.parametrize(
    ("stage", "weights", "gradients", "optimizer"),
    [
        # 2 bytes a weight, 2 a gradient, 12 for the fp32 master and two moments; two ranks share what is sharded
        (0, 19_997_696, 19_997_696, 119_986_176),
        (1, 19_997_696, 19_997_696, 59_993_088),
        (2, 19_997_696, 9_998_848, 59_993_088),
        (3, 9_998_848, 9_998_848, 59_993_088),
    ],
)
def test_the_memory_of_ten_million_weights_on_two_ranks_is_as_by_hand(stage, weights, gradients, optimizer) -> None:
    deepspeed = {"zero_optimization": {"stage": stage}} if stage else {}
    demand = estimate_memory(ten_million(), 1000, ModelConfig(), deepspeed, ranks=2)
    states = activation_bytes(ten_million(), 1000, ModelConfig(), engine=True)
    assert demand == MemoryEstimate(weights, gradients, optimizer, states)
    assert demand.total == weights + gradients + optimizer + states


def test_the_estimate_accounts_for_fp32_checkpointing_offload_and_lora() -> None:
    config, exact, checkpoints = ten_million(), ModelConfig(precision="fp32"), ModelConfig(gradient_checkpointing=True)
    fp32 = estimate_memory(config, 1000, exact, None, 1)
    assert fp32 == MemoryEstimate(
        4 * WEIGHTS, 4 * WEIGHTS, 8 * WEIGHTS, activation_bytes(config, 1000, exact, engine=False)
    )
    # autocast without DeepSpeed keeps fp32 weights
    assert replace(estimate_memory(config, 1000, ModelConfig(), None, 1), activations=0) == MemoryEstimate(
        4 * WEIGHTS, 4 * WEIGHTS, 8 * WEIGHTS, 0
    )
    whole = estimate_memory(config, 8000, ModelConfig(), None, 1)
    assert estimate_memory(config, 8000, checkpoints, None, 1).activations < 0.5 * whole.activations
    offload = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {}}}
    assert estimate_memory(config, 1000, ModelConfig(), offload, 2).optimizer == 0
    lora = estimate_memory(config, 1000, ModelConfig(lora_rank=8), {}, 1)
    assert 2 * WEIGHTS < lora.weights < 2.1 * WEIGHTS
    assert lora.optimizer < 0.05 * 12 * WEIGHTS


def test_a_run_that_does_not_fit_is_refused_with_figures_and_fixes() -> None:
    demand = MemoryEstimate(2.0 * GIB, 2.0 * GIB, 12.0 * GIB, 4.0 * GIB)
    with pytest.raises(InputError) as caught:
        check_memory(demand, 16.0, stage=0, micro_batch=8)
    message = str(caught.value)
    assert "needs about 20.0 GiB a device (weights 2.0, gradients 2.0, optimizer 12.0, activations 4.0)" in message
    assert "--memory_gb is 16;" in message
    assert "--gradient_checkpointing, --deepspeed zero2" in message
    assert "micro_batch" not in message  # activations are not what is big
    with pytest.raises(InputError, match=r"smaller --micro_batch.*--deepspeed zero3"):
        check_memory(MemoryEstimate(1.0, 1.0, 1.0, 8.0 * GIB), 4.0, stage=2, micro_batch=8)
    with pytest.raises(InputError, match="--deepspeed zero3_offload"):
        check_memory(demand, 4.0, stage=3, micro_batch=1)
    check_memory(demand, 20.0, 0, 8)
    check_memory(demand, None, 0, 8)


def test_every_config_named_in_an_error_exists() -> None:
    root = Path(__file__).parents[3] / "configs"
    assert all((root / f"zero{name}.json").is_file() for name in ("2", "3", "3_offload"))


def test_a_causal_model_needs_memory_for_its_head_and_logits_too() -> None:
    exact = ModelConfig(precision="fp32")
    scorer, policy = (estimate_memory(ten_million(), 100_000, exact, None, 1, causal) for causal in (False, True))
    # the head is vocabulary x width where the scorer's is 1 x width; logits, their softmax and gradient in fp32
    assert policy.weights - scorer.weights == 4 * (16384 * 256 - 256)
    assert 0 < policy.activations - scorer.activations <= CHUNK_LOGITS * 3 * 4
    assert count_weights(ten_million(), causal=True)[0] == WEIGHTS - 256 + 16384 * 256


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "granite", "gpt2", "mistral", "phi3", "olmo2"])
def test_the_dtype_of_a_config_changes_no_estimate_since_a_run_loads_in_fp32(family: str, causal: bool) -> None:
    stated = [
        AutoConfig.for_model(family, pad_token_id=0, dtype=dtype, num_hidden_layers=2) for dtype in (None, "bfloat16")
    ]
    first, second = (estimate_memory(config, 1000, ModelConfig(), None, 1, causal) for config in stated)
    assert first is not None
    assert first == second


def test_code_of_a_model_is_not_asked_for_before_it_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    class Mine(LlamaConfig):
        """A config out of a model's folder."""

    Mine.__module__ = f"{TRANSFORMERS_DYNAMIC_MODULE_NAME}.mine"
    settings = ModelConfig(lora_rank=4, trust_remote_code=True)
    assert estimate_memory(Mine(), 100, settings, None, 1, True) is None
    refuse_absent_modules(Mine(), settings, True)
    said = capsys.readouterr().err
    assert said.count("failed (NotImplementedError: llama has code of its own)") == 2
