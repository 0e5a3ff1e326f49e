"""Memory that is counted on fake tensors, beside what torch's own tracker counts of a real pass."""

import sys

import pytest
import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from transformers import AutoConfig

from lmgym.config import ModelConfig
from lmgym.models import activations
from lmgym.models.activations import UNKNOWN_LAYER, PeakBytes, activation_bytes, empty_model
from lmgym.models.classifiers import new_classifier
from lmgym.models.forward.attention import RowAttention
from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.packed_rows import pack_rows
from lmgym.models.memory import GIB, most_logits

FULL, LORA = ModelConfig(precision="fp32"), ModelConfig(precision="fp32", lora_rank=8)


def llama(layers: int = 4, **settings) -> AutoConfig:
    return AutoConfig.for_model(
        "llama", vocab_size=512, hidden_size=64, num_hidden_layers=layers, num_attention_heads=4, pad_token_id=0,
        num_key_value_heads=2, intermediate_size=160, num_labels=1, **settings,
    )  # fmt: skip


def measured(config, settings: ModelConfig, rows: int, columns: int) -> float:
    """Peak of a real forward and backward on the CPU, less weights and gradients, by torch's tracker."""
    model = new_classifier(config)
    config._attn_implementation = "sdpa"
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    tracker = MemTracker()
    tracker.track_external(model)
    ids = torch.ones(rows, columns, dtype=torch.long)
    with tracker:
        states = model.model(input_ids=ids, use_cache=False).last_hidden_state
        states[:, -1].float().sum().backward()
    held = 2 * sum(p.numel() * p.element_size() for p in model.parameters())
    peak = tracker.get_tracker_snapshot("peak")
    return max(kinds["Total"] for kinds in peak.values()) - held


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_real_pass_holds_what_is_counted(checkpointing: bool) -> None:
    settings = ModelConfig(precision="fp32", gradient_checkpointing=checkpointing)
    real = measured(llama(), settings, 16, 256)
    assert activation_bytes(llama(), 16 * 256, settings, False) == pytest.approx(real, rel=0.1)


def gemma2(**settings) -> AutoConfig:
    """Soft caps, windows in every other layer, and heads that are wide beside the MLP."""
    return AutoConfig.for_model(
        "gemma2", vocab_size=512, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, head_dim=64,
        num_key_value_heads=2, intermediate_size=64, sliding_window=100, num_labels=1, pad_token_id=0, **settings,
    )  # fmt: skip


def measured_packed(config, rows: int, columns: int, dropout: bool) -> int:
    """Peak of a real forward and backward of packed rows on the CPU, less weights and gradients."""
    model = new_classifier(config)
    nn.Module.train(model, dropout)
    decoder = Decoder(model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    packed = pack_rows([[1] * columns] * rows, [1] * rows)
    with PeakBytes([*model.parameters(), *(p.grad for p in model.parameters() if p.grad is not None)]) as count:
        decoder.run(packed.ids, packed.positions, RowAttention(packed))[:1].sum().backward()
        return count.begin()


@pytest.mark.parametrize(("rows", "columns"), [(16, 256), (2, 2048)])
def test_real_packed_rows_with_soft_caps_hold_what_is_counted(rows: int, columns: int) -> None:
    real = measured_packed(gemma2(), rows, columns, dropout=False)
    assert activation_bytes(gemma2(), rows * columns, FULL, False) == pytest.approx(real, rel=0.1)


def test_weights_of_dropout_are_counted_only_where_it_is_on() -> None:
    config, without = gemma2(attention_dropout=0.1), activation_bytes(gemma2(), 2 * 1024, FULL, False)
    assert activation_bytes(config, 2 * 1024, FULL, False) == without
    found = activation_bytes(config, 2 * 1024, FULL, False, dropout_row=1024)
    assert found == pytest.approx(measured_packed(config, 2, 1024, dropout=True), rel=0.1)
    assert found > without + 4 * 2 * 4 * 1024 * 1024 * 4  # a weight in fp32: layers, rows, heads, queries, keys
    assert activation_bytes(config, 2 * 1024, FULL, False, dropout_row=512) < 0.6 * found


def test_each_further_layer_and_token_costs_the_same() -> None:
    four, six, ten = (activation_bytes(llama(n), 4096, FULL, False) for n in (4, 6, 10))
    assert ten - six == pytest.approx(2 * (six - four))
    assert activation_bytes(llama(10), 8192, FULL, False) == pytest.approx(2 * ten, rel=0.02)


def test_the_line_through_few_layers_is_what_all_layers_hold(monkeypatch) -> None:
    found = {
        name: activation_bytes(llama(14), 2048, ModelConfig(gradient_checkpointing=checkpoints), False, 10**6)
        for name, checkpoints in (("whole", False), ("checkpoints", True))
    }
    monkeypatch.setattr(activations, "MORE", 100)
    for name, checkpoints in (("whole", False), ("checkpoints", True)):
        settings = ModelConfig(gradient_checkpointing=checkpoints)
        assert found[name] == pytest.approx(activation_bytes(llama(14), 2048, settings, False, 10**6), rel=0.01)


def test_what_saves_memory_saves_it() -> None:
    def held(**settings) -> float:
        return activation_bytes(llama(8), 4096, ModelConfig(**settings), False)

    assert held() < 0.8 * held(precision="fp32")
    assert held(gradient_checkpointing=True) < 0.4 * held()
    assert held(lora_rank=8) < held()
    assert activation_bytes(llama(8), 4096, ModelConfig(), True) < held()  # states in bf16
    assert activation_bytes(llama(8), 4096, FULL, False, layers=2) < 0.35 * held(precision="fp32")
    assert activation_bytes(llama(8), 4096, FULL, False, learns=False) < 0.2 * held(precision="fp32")


def test_logits_count_twelve_bytes_where_nothing_else_is_larger() -> None:
    without, some = (activation_bytes(llama(1), 10, FULL, False, n) for n in (1, 10**7))
    assert some - without == pytest.approx(12 * 10**7, rel=0.01)
    assert most_logits(llama(), 10) == 5120


@pytest.mark.parametrize("family", ["gpt2", "bert", "gemma3_text", "opt", "gptj", "gpt_neo", "bloom"])
def test_other_families_are_counted_too(family: str, monkeypatch) -> None:
    monkeypatch.setattr(activations, "UNKNOWN_LAYER", float("nan"))
    config = AutoConfig.for_model(family, pad_token_id=0)
    assert activation_bytes(config, 512, FULL, False) > 34 * 512 * config.hidden_size * config.num_hidden_layers


def test_a_model_that_cannot_be_counted_is_estimated_and_one_line_says_why(capfd, monkeypatch) -> None:
    monkeypatch.setattr(activations, "_passes", lambda *_: {}["lmgym_counted"])
    config = llama(8)
    assert activation_bytes(config, 1000, ModelConfig(), False) == UNKNOWN_LAYER * 1000 * 64 * 8
    assert activation_bytes(config, 1000, ModelConfig(gradient_checkpointing=True), False) == 1000 * 64 * (32 + 100)
    why = "failed (KeyError: 'lmgym_counted'); a rough figure stands for it"
    line = f"warning: counting the memory of activations {why}\n"
    assert capfd.readouterr() == ("", line)


def test_a_count_that_takes_long_is_given_up(capfd, monkeypatch) -> None:
    monkeypatch.setattr(activations, "SECONDS", 0)
    assert activation_bytes(llama(8), 1000, ModelConfig(), False) == UNKNOWN_LAYER * 1000 * 64 * 8
    assert "failed (TimeoutError: it takes more than 0 s of a processor); a rough figure" in capfd.readouterr().err


def test_the_models_of_a_count_have_no_data(monkeypatch) -> None:
    model = empty_model(llama(), LORA, causal=True)
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert sys.getsizeof(model) < GIB
