"""The rounded copy that samples in bf16: how near it is to what learns, and what making it costs."""

import copy

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from lmgym.generation.protocol import Sampling
from lmgym.models.classifiers import round_frozen_layers, round_frozen_weights
from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.logprobs import token_logprobs
from lmgym.models.forward.packed_rows import pack_rows
from lmgym.models.lora import add_lora
from lmgym.models.parameters import copied, with_rounded_linear_layers
from ppo.actor_critic import ActorCritic, Reference
from ppo.weight_sync import SamplingPolicy, in_buckets

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


def logprobs_of(actor: ActorCritic) -> torch.Tensor:
    """Of the last 8 tokens of ROWS, under autocast."""
    targets = torch.tensor([id_ for row in ROWS for id_ in row[-8:]])
    with torch.autocast("cpu", torch.bfloat16):
        return actor(pack_rows(ROWS, [8] * len(ROWS)), targets)[0]


@pytest.mark.parametrize("way", ["lora", "hydra"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("checkpoint", [torch.float32, torch.bfloat16])
def test_a_frozen_weight_is_in_memory_once_in_bf16_for_policy_reference_and_sampler(
    way: str, tied: bool, checkpoint: torch.dtype
) -> None:
    """All storages that a run holds are counted; its log-probabilities are those of fp32 weights under autocast."""
    model = make("qwen3", tie_word_embeddings=tied).to(checkpoint).float()
    actor = ActorCritic(add_lora(model, 2, 4, 0.0)) if way == "lora" else ActorCritic(model, frozen_layers=1)
    before = logprobs_of(actor)
    round_frozen_weights(actor.policy)
    assert torch.equal(logprobs_of(actor), before)
    sampler, reference = SamplingPolicy(actor, NoText(), "bf16", False, False, rows=8), Reference.of(actor)
    assert (reference is None) == (way == "lora")
    if reference is not None:
        reference.round(everything=False)
    models = [actor, sampler.policy, *([reference.model] if reference else [])]
    held = {p.data_ptr(): p.nbytes for model in models for p in model.parameters()}
    linear = [m for m in actor.policy.modules() if isinstance(m, torch.nn.Linear)]
    frozen = sum(m.weight.numel() for m in linear if not m.weight.requires_grad and m is not actor.causal.lm_head)
    trained = sum(m.weight.numel() for m in linear if m.weight.requires_grad and m is not actor.causal.lm_head)
    head = actor.causal.lm_head.weight.numel()
    others = sum(p.nbytes for p in actor.parameters()) - sum(m.weight.nbytes for m in linear)
    # a rounded copy of what is trained samples, another of it is the reference; a frozen head is held once, or, tied,
    # as fp32 embeddings (in `others`) and in bf16 for sampling, or in bf16 alone if the checkpoint is; one that learns
    # is there three times
    expected = 2 * frozen + (4 + 2 + 2 * (way == "hydra")) * trained
    if tied and checkpoint == torch.bfloat16:
        others += 2 * head
    elif tied:
        others += 4 * head
        expected += 2 * head
    else:
        expected += 2 * head if way == "lora" else (4 + 2 + 2) * head
    norms = sum(p.nbytes for name, p in model.named_parameters() if p.requires_grad and "norm" in name)
    assert sum(held.values()) == expected + others + norms * (way == "hydra")


def test_a_sampler_follows_what_is_trained_above_frozen_layers_in_bf16() -> None:
    actor = ActorCritic(make("qwen3"), frozen_layers=1)
    round_frozen_layers(actor.policy)
    sampler = SamplingPolicy(actor, NoText(), "bf16", False, False, rows=8)
    sampler.sync()
    lower, upper = (block.mlp.up_proj.weight for block in actor.causal.model.layers)
    with torch.no_grad():
        upper.add_(1)
    sampler.sync(1)
    mine = [block.mlp.up_proj.weight for block in sampler.policy.model.layers]
    assert mine[0] is lower
    assert lower.dtype == torch.bfloat16
    assert torch.equal(mine[1], upper.to(torch.bfloat16))


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


@pytest.mark.parametrize("checkpoint", [torch.float32, torch.bfloat16])
def test_a_reference_beside_a_policy_that_learns_has_embeddings_in_bf16_if_its_checkpoint_is(checkpoint) -> None:
    actor = ActorCritic(make("qwen3").to(checkpoint).float())
    reference = Reference.of(actor)
    assert reference is not None
    rows, targets = pack_rows(ROWS, [8] * len(ROWS)), torch.tensor([id_ for row in ROWS for id_ in row[-8:]])
    found = []
    for change in (lambda: None, lambda: reference.round(everything=False)):
        change()
        with torch.autocast("cpu", torch.bfloat16):
            found.append(reference.logprobs(rows, targets, None))
    assert torch.equal(*found)
    assert reference.model.lm_head.weight.dtype == reference.model.model.embed_tokens.weight.dtype == checkpoint
    assert actor.causal.model.embed_tokens.weight.dtype == torch.float32


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


def test_weights_are_gathered_in_buckets_of_whole_weights() -> None:
    sizes = [3, 2, 9, 1, 1, 4]
    assert list(in_buckets(sizes, sizes, 5)) == [[3, 2], [9], [1, 1], [4]], "a larger one alone"
    assert list(in_buckets([], [], 5)) == []
