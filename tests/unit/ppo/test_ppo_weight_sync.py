"""The rounded copy that samples in bf16: how near it is to what learns, and what making it costs."""

import copy

import pytest
import torch
from lmgym.models.forward.logprobs import token_logprobs
from transformers import AutoConfig, AutoModelForCausalLM

from lmgym.generation.protocol import Sampling
from lmgym.models.copies import copied, with_rounded_linear_layers
from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.packed_rows import pack_rows
from lmgym.models.lora import add_lora
from ppo.actor_critic import ActorCritic, Reference
from ppo.weight_sync import SamplingPolicy

IDS = {"vocab_size": 97, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
SIZES = {
    "gpt2": {"n_layer": 2, "n_embd": 32, "n_head": 4, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0},
    "qwen3": {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4,
              "num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": True},
}  # fmt: skip
ROWS = [[2 + (7 * i + j * j) % 95 for j in range(20 + 9 * i)] for i in range(6)]


def make(family: str, **settings):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **{**IDS, **SIZES[family], **settings})).eval()


class NoText:
    """A tokenizer's part that is not tested."""

    eos_token_id = None

    def decode(self, ids, **settings) -> str:
        """Nothing."""
        return ""


@pytest.mark.parametrize("adapted", [False, True])
def test_a_copy_rounds_weights_and_leaves_rotary_frequencies(adapted: bool) -> None:
    model = make("qwen3")
    model = add_lora(model, 2, 4, 0.0) if adapted else model
    own = copied(model, torch.bfloat16)
    assert {p.dtype for p in own.parameters()} == {torch.bfloat16}
    assert not any(p.requires_grad for p in own.parameters())
    for ours, theirs in zip(own.buffers(), model.buffers(), strict=True):
        assert torch.equal(ours, theirs)
    causal = own.get_base_model() if adapted else own
    assert causal.lm_head.weight is causal.model.embed_tokens.weight
    assert not {p.data_ptr() for p in own.parameters()} & {p.data_ptr() for p in model.parameters()}


def test_no_weight_is_copied_in_its_own_width_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self, memo):
        raise AssertionError("a whole fp32 copy of 8 billion weights takes 31 GiB more")

    model = make("qwen3")
    monkeypatch.setattr(torch.nn.Parameter, "__deepcopy__", refuse)
    with pytest.raises(AssertionError):
        copy.deepcopy(model)
    copied(model, torch.bfloat16)


def test_what_samples_in_bf16_shares_all_but_rounded_linear_layers_and_a_tied_heads_copy() -> None:
    model = make("qwen3")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    own = with_rounded_linear_layers(model)
    assert own.model.embed_tokens.weight is model.model.embed_tokens.weight
    assert own.model.norm.weight is model.model.norm.weight
    assert own.lm_head.weight.dtype == own.model.layers[0].mlp.up_proj.weight.dtype == torch.bfloat16
    trained = {id(p) for p in model.parameters()}
    copies = [p for p in own.parameters() if id(p) not in trained]
    assert all(p.dtype == torch.bfloat16 and not p.requires_grad for p in copies)
    words = model.lm_head.weight.numel()
    assert sum(p.numel() for p in copies) == words + sum(
        m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear) and m is not model.lm_head
    )


@pytest.mark.parametrize("family", SIZES)
def test_a_sampler_in_bf16_knows_its_log_probabilities_by_a_prefix_as_by_a_batch(family: str) -> None:
    actor = ActorCritic(make(family))
    sampler = SamplingPolicy(actor, NoText(), "bf16", sharded=False, under_deepspeed=False, rows=8)
    sampler.sync()
    for prompts in ([ROWS[0]], ROWS):
        replies = [reply for [reply] in sampler.generator.generate(prompts, 1, Sampling(8, seed=1, ends_at_eos=False))]
        rows = [[*prompt, *reply.ids] for prompt, reply in zip(prompts, replies, strict=True)]
        decoder = Decoder(actor.policy)
        with torch.autocast("cpu", torch.bfloat16):
            normed = decoder.hidden(pack_rows(rows, [8] * len(rows)))
            found = token_logprobs(decoder, normed, torch.tensor([id_ for row in rows for id_ in row[-8:]]))
        sampled = torch.tensor([x for reply in replies for x in reply.logprobs])
        assert (found - sampled).abs().mean() < 0.01


def test_a_rounded_reference_keeps_its_rotary_frequencies() -> None:
    actor = ActorCritic(make("qwen3"))
    reference = Reference.of(actor)
    reference.round(everything=True)
    assert {p.dtype for p in reference.model.parameters()} == {torch.bfloat16}
    for ours, theirs in zip(reference.model.buffers(), actor.buffers(), strict=True):
        assert ours.is_floating_point()
        assert torch.equal(ours, theirs)


def test_a_rounded_reference_leaves_what_it_shares_with_the_policy_as_it_is() -> None:
    """Also a linear layer between the embeddings and the first layer."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "opt", hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=4, word_embed_proj_dim=16, **IDS
    )
    actor = ActorCritic(AutoModelForCausalLM.from_config(config), frozen_layers=1)
    reference = Reference.of(actor)
    assert reference is not None
    shared = actor.causal.model.decoder.project_in
    assert reference.model.model.decoder.project_in is shared
    reference.round(everything=False)
    assert shared.weight.dtype == torch.float32
    assert reference.model.model.decoder.layers[1].fc1.weight.dtype == torch.bfloat16
