"""The rounded copy that samples in bf16: how near it is to what learns, and what making it costs."""

import copy

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModelForCausalLM

from lmgym.generation.decoding import prefill, static_step, step
from lmgym.generation.protocol import Sampling
from lmgym.models.causal_rows import lay, run_layers, token_logprobs
from lmgym.models.fast import functions
from lmgym.models.fast.families import family_of
from lmgym.models.lora import add_lora
from ppo.models import ActorCritic, Reference
from ppo.sampling import SamplingPolicy, copied

IDS = {"vocab_size": 97, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
SIZES = {
    "gpt2": {"n_layer": 2, "n_embd": 32, "n_head": 4, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0},
    "qwen3": {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4,
              "num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": True},
}  # fmt: skip
ROWS = [[2 + (7 * i + j * j) % 95 for j in range(20 + 9 * i)] for i in range(6)]
READS = [12] * 6


def make(family: str, **settings):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **{**IDS, **SIZES[family], **settings})).eval()


class NoText:
    """A tokenizer's part that is not tested."""

    eos_token_id = None

    def decode(self, ids, **settings) -> str:
        """Nothing."""
        return ""


def logprobs_of(family) -> torch.Tensor:
    batch, targets = lay(ROWS, READS), torch.tensor([id_ for row in ROWS for id_ in row[-12:]])
    return token_logprobs(family, family.norm(run_layers(family, batch)), targets).float().detach()


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


def test_what_rounded_layers_add_to_in_fp32_is_nearer() -> None:
    model = make("qwen3", num_hidden_layers=24)
    exact, own = logprobs_of(family_of(model)), family_of(copied(model, torch.bfloat16))
    rough = logprobs_of(own)
    own.sums_in_fp32 = True
    fine = logprobs_of(own)
    assert (fine - exact).abs().mean() < 0.8 * (rough - exact).abs().mean()


@pytest.mark.parametrize("family", SIZES)
def test_a_step_that_adds_in_fp32_is_the_same_step_static_or_not_after_one_prompt_or_many(family: str) -> None:
    functions = family_of(copied(make(family), torch.bfloat16))
    functions.sums_in_fp32 = True
    prompts = [row[:-12] for row in ROWS]
    (logits, one), (_, other) = (prefill(functions, prompts, 2, 8) for _ in range(2))
    other.clear()
    tokens = logits.argmax(-1).repeat_interleave(2)
    for place in range(8):
        expected = step(functions, tokens, one)
        found = static_step(functions, tokens, torch.tensor([place]), other)
        torch.testing.assert_close(found, expected, rtol=0, atol=0.02)
        assert found.dtype == torch.bfloat16
        tokens = expected.argmax(-1)


@pytest.mark.parametrize("family", SIZES)
def test_a_sampler_in_bf16_knows_its_log_probabilities_by_a_prefix_as_by_a_batch(family: str) -> None:
    actor = ActorCritic(make(family))
    sampler = SamplingPolicy(actor, NoText(), "bf16", sharded=False, under_deepspeed=False, rows=8)
    assert sampler.generator.family.sums_in_fp32
    sampler.sync()
    for prompts in ([ROWS[0]], ROWS):
        replies = [reply for [reply] in sampler.generator.generate(prompts, 1, Sampling(8, seed=1, ends_at_eos=False))]
        rows = [[*prompt, *reply.ids] for prompt, reply in zip(prompts, replies, strict=True)]
        family_ = family_of(actor.policy)
        with torch.autocast("cpu", torch.bfloat16):
            normed = family_.norm(run_layers(family_, lay(rows, [8] * len(rows))))
            found = token_logprobs(family_, normed, torch.tensor([id_ for row in rows for id_ in row[-8:]]))
        sampled = torch.tensor([x for reply in replies for x in reply.logprobs])
        assert (found - sampled).abs().mean() < 0.01


@pytest.mark.parametrize(
    ("precision", "frozen", "gib", "under_deepspeed"),
    [
        ("fp32", 1, 1.0, False),
        ("bf16", 1, 1.0, False),
        ("fp32", 0, 1.0, False),
        ("fp32", 1, 0.0, False),
        ("fp32", 1, 1.0, True),
    ],
)
def test_a_sampler_keeps_the_frozen_layers_states_that_training_would_compute(
    precision: str, frozen: int, gib: float, under_deepspeed: bool
) -> None:
    actor = ActorCritic(make("qwen3"), frozen_layers=frozen)
    sampler = SamplingPolicy(actor, NoText(), precision, sharded=False, under_deepspeed=under_deepspeed, rows=8)
    sampler.sync(gib)
    replies = [reply for [reply] in sampler.generator.generate(ROWS, 1, Sampling(8, seed=1))]
    rows = [[*prompt, *reply.ids] for prompt, reply in zip(ROWS, replies, strict=True)]
    if precision != "fp32" or not frozen or not gib or under_deepspeed:
        assert sampler.states is None
        return
    assert sampler.states is not None
    found = sampler.states.of(rows)
    assert found is not None
    torch.testing.assert_close(found, actor.trunk(lay(rows, [1] * len(rows))), rtol=1e-5, atol=1e-5)
    sampler.sync()
    assert sampler.states is None, "evaluation keeps nothing"


def test_norms_are_asked_for_in_one_type_under_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two types torch has no fused kernel, and says so once."""
    types, fused, own_way = [], F.rms_norm, functions.RMSNorm.apply

    def note(hidden: torch.Tensor, weight: torch.Tensor) -> None:
        types.append((hidden.dtype, weight.dtype))

    monkeypatch.setattr(F, "rms_norm", lambda h, shape, w, epsilon: (note(h, w), fused(h, shape, w, epsilon))[1])
    monkeypatch.setattr(functions.RMSNorm, "apply", lambda h, w, epsilon: (note(h, w), own_way(h, w, epsilon))[1])
    model = make("qwen3")
    with torch.autocast("cpu", torch.bfloat16):
        logprobs_of(family_of(model))
    own = family_of(copied(model, torch.bfloat16))
    own.sums_in_fp32 = True
    logprobs_of(own)
    assert set(types) == {(torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16)}


def test_a_rounded_reference_keeps_its_rotary_frequencies() -> None:
    actor = ActorCritic(make("qwen3"))
    reference = Reference.of(actor)
    reference.round(everything=True)
    assert {p.dtype for p in reference.model.parameters()} == {torch.bfloat16}
    for ours, theirs in zip(reference.model.buffers(), actor.buffers(), strict=True):
        assert ours.is_floating_point()
        assert torch.equal(ours, theirs)
