"""Any decoder through its own forward: packed rows, states at chosen places, frozen layers, and what is padded."""

from dataclasses import replace

import pytest
import torch
from families import alone, random_rows
from transformers import AutoConfig, AutoModelForCausalLM

from lmgym.models.forward import structure
from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.packed_rows import pack_places, pack_replies, pack_rows
from lmgym.models.forward.structure import lost_window
from lmgym.text import Replies

SIZES = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
# windows are shorter than the rows, and caps and scales are far from doing nothing
FAMILIES = {
    "llama": SIZES,
    "gemma2": SIZES | {
        "sliding_window": 12, "head_dim": 8, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 3.0,
    },
    "granite": SIZES | {
        "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.3, "logits_scaling": 2.0,
    },
    "mistral": SIZES | {"sliding_window": 12},
    "gpt_oss": SIZES | {
        "head_dim": 8, "num_local_experts": 4, "sliding_window": 12,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    },
    "bloom": {"vocab_size": 97, "hidden_size": 32, "n_layer": 3, "n_head": 4},
    "mamba": {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 3},
}  # fmt: skip
PADDED = {"bloom": "3 of its 3 layers do not do their attention", "mamba": "it has layers of type linear_attention"}
LENGTHS, READS = (30, 17, 17, 5), (5, 4, 3, 2)


def make(family: str):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **FAMILIES[family])).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    if family == "gpt_oss":
        for name, parameter in model.named_parameters():
            if "sinks" in name:
                torch.nn.init.normal_(parameter)
    return model


def rows() -> list[list[int]]:
    return random_rows(97, LENGTHS, seed=1)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_each_row_alone_and_gradients_too(family: str) -> None:
    model = make(family)
    decoder, batch = Decoder(model), pack_rows(rows(), READS)
    assert decoder.packed == (family not in PADDED)
    assert decoder.structure.padded_because.startswith(PADDED.get(family, ""))
    wanted = torch.cat([alone(model, row)[-n - 1 : -1] for row, n in zip(rows(), READS, strict=True)])
    found = decoder.logits(decoder.hidden(batch))
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
    trained = list(model.parameters())
    ours = torch.autograd.grad(found.square().sum(), trained, allow_unused=True)
    theirs = torch.autograd.grad(wanted.square().sum(), trained, allow_unused=True)
    for own, other in zip(ours, theirs, strict=True):
        if other is not None:
            assert (own - other).abs().max() <= 1e-4 * max(1, other.abs().max())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_forward_from_the_states_of_frozen_layers_equals_the_whole_one_and_skips_them(family: str) -> None:
    decoder, batch = Decoder(make(family)), pack_rows(rows(), READS)
    states, calls = decoder.hidden_after(batch, 2), []
    for block in decoder.blocks:
        block.register_forward_hook(lambda module, *_: calls.append(module))
    inner = [next(m for m in block.modules() if m is not block and list(m.children())) for block in decoder.blocks]
    for module in inner:
        module.register_forward_hook(lambda module, *_: calls.append(module))
    found = decoder.hidden(batch, states=states, first=2)
    assert [module in calls for module in inner] == [False, False, True]
    torch.testing.assert_close(found, decoder.hidden(batch), atol=0, rtol=0)


@pytest.mark.parametrize("family", ["llama", "gemma2", "bloom"])
def test_layers_recomputed_in_the_backward_attend_as_in_the_forward(family: str) -> None:
    model = make(family)
    decoder, batch = Decoder(model), pack_replies([Replies(rows()[0], rows()[1:])])
    found = []
    for recompute in (False, True):
        loss = decoder.hidden(batch, recompute=recompute).square().sum()
        found.append(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))
    for one, other in zip(*found, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "gemma2", "mistral"])
def test_modules_after_the_last_attention_run_only_where_states_are_read(family: str) -> None:
    model = make(family)
    decoder, batch = Decoder(model), pack_rows(rows(), READS)
    tokens: dict[int, list[int]] = {}
    for number, block in enumerate(model.model.layers):
        for inner in (block.self_attn.o_proj, block.mlp.up_proj):
            inner.register_forward_pre_hook(
                lambda _, inputs, i=number: tokens.setdefault(i, []).append(inputs[0].shape[1])
            )
    found = decoder.hidden(batch)
    # o_proj is called with all and runs where it is read; up_proj is within what runs there
    whole, read = len(batch.ids), sum(READS)
    assert tokens == {0: [whole] * 2, 1: [whole] * 2, 2: [whole, read]}
    torch.testing.assert_close(found, decoder.hidden(batch, recompute=True), atol=1e-5, rtol=0)


def test_places_may_be_anywhere() -> None:
    model, places = make("llama"), [[0, 3, 29], [], [16], [1, 2]]
    found = (decoder := Decoder(model)).logits(decoder.hidden(pack_places(rows(), places)))
    wanted = torch.cat([alone(model, row)[own] for row, own in zip(rows(), places, strict=True)])
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


def test_the_model_is_unchanged_outside_our_calls() -> None:
    model = make("mistral")
    before = model.config._attn_implementation
    ids = torch.tensor([rows()[0]])
    plain = model(ids).logits
    decoder = Decoder(model)
    decoder.hidden(pack_rows(rows(), READS))
    assert model.config._attn_implementation == before
    torch.testing.assert_close(model(ids).logits, plain, atol=0, rtol=0)


def test_a_model_with_wrong_packed_states_is_padded_and_the_difference_is_named() -> None:
    model = make("llama")
    layer = model.model.layers[1].self_attn.o_proj
    # what depends on how many rows there are, as an attention across rows would
    layer.register_forward_hook(lambda _, inputs, out: out + 0.5 * (inputs[0].shape[1] > 8))
    assert "differ from those of rows alone by" in Decoder(model).structure.padded_because


@pytest.mark.parametrize("is_right", [True, False])
def test_a_model_that_rounds_much_in_bf16_runs_packed_and_a_wrong_one_does_not(
    is_right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if no difference were small enough: then it is held against that of transformers' own two attentions."""
    monkeypatch.setattr(structure, "HALF_PRECISION_TOLERANCE", 0.0)
    model = make("llama").to(torch.bfloat16)
    if not is_right:
        layer = model.model.layers[1].self_attn.o_proj
        layer.register_forward_hook(lambda _, inputs, out: out + 0.5 * (inputs[0].shape[1] > 8))
    because = Decoder(model).structure.padded_because
    assert because == "" if is_right else "differ from those of rows alone by" in because


def test_a_window_that_does_not_reach_the_attention_is_found_with_short_rows() -> None:
    config = AutoConfig.for_model("mistral", **SIZES, sliding_window=4096)
    assert lost_window(config, [4096] * 3) == ""
    assert (
        lost_window(config, [4096, None, 4096]) == "the window of 4096 tokens of layer 1 does not reach its attention"
    )
    config = AutoConfig.for_model("gemma2", **SIZES)  # every other layer has one
    assert lost_window(config, [4096, None, 4096]) == ""


@pytest.mark.parametrize("outputs", [0, 1, 3])
def test_a_layer_that_does_not_run_returns_as_many_values_as_one_that_does(outputs: int) -> None:
    decoder = Decoder(make("llama"))
    decoder.structure = replace(decoder.structure, block_outputs=outputs)
    given, kept = torch.zeros(1), torch.ones(1)
    for states, passed in ((None, given), (kept, kept)):
        found = decoder._passing_on(states)(given, attention_mask=None)
        assert (found is passed) if outputs == 0 else (found[0] is passed and len(found) == outputs)
