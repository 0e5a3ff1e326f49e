"""Frozen embeddings in bf16: no number of a run changes, and tables that would lose something stay as they are."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from lmgym.distributed.weights import load_weights, save_weights
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling
from lmgym.models.classifiers import autocast_dtype, new_classifier, round_frozen_layers, round_frozen_weights
from lmgym.models.embeddings import frozen_embeddings, survives_bf16
from lmgym.models.forward.packed_rows import pack_rows
from lmgym.models.forward.policies import PolicyModel, load_policy, save_policy
from lmgym.models.forward.scoring_model import ScoringModel
from lmgym.models.forward.wider import wider_logprobs
from lmgym.models.loading import fit_to_tokenizer, load_tokenizer
from lmgym.models.lora import add_lora
from lmgym.models.saving import unwrap_adapters

IDS = {"vocab_size": 97, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
SIZES = {
    "gpt2": {"n_layer": 2, "n_embd": 32, "n_head": 4, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0},
    "llama": LAYERS | {"hidden_size": 32, "num_key_value_heads": 2, "tie_word_embeddings": False},
    "qwen3": LAYERS | {"hidden_size": 32, "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True},
    "granite": LAYERS | {"hidden_size": 32, "num_key_value_heads": 2, "embedding_multiplier": 3.0,
                "tie_word_embeddings": True},
    "gpt_neox": LAYERS | {"hidden_size": 32},
    "opt": {"hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "dropout": 0.0,
            "word_embed_proj_dim": 16},
}  # fmt: skip
GEMMA = LAYERS | {"hidden_size": 40, "num_key_value_heads": 2, "head_dim": 16}  # sqrt(40) is no number of bf16
ROWS = [[2 + (7 * i + j * j) % 95 for j in range(12 + 5 * i)] for i in range(4)]
READS = [6, 5, 4, 3]


def from_bf16(model):
    """The model with numbers of bf16 alone, in fp32: as a checkpoint in bf16 is loaded."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16).float()
    return model.eval()


def make(family: str, sizes: dict | None = None):
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **IDS, **(SIZES[family] if sizes is None else sizes))
    return from_bf16(AutoModelForCausalLM.from_config(config))


def words_of(model) -> nn.Module:
    return unwrap_adapters(model).get_input_embeddings()


def shaken(model):
    """Adapters that do something."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    return model


def losses(policy: PolicyModel) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """(log-probabilities, gradients of what is trained) under bf16's autocast."""
    policy.zero_grad()
    targets = torch.tensor([id_ for row, reads in zip(ROWS, READS, strict=True) for id_ in row[-reads:]])
    with torch.autocast("cpu", torch.bfloat16):
        found = policy(pack_rows(ROWS, READS), targets)
    found.sum().backward()
    return found.detach(), [p.grad.clone() for p in policy.parameters() if p.requires_grad and p.grad is not None]


def same(found: tuple[torch.Tensor, list[torch.Tensor]], wanted: tuple[torch.Tensor, list[torch.Tensor]]) -> bool:
    assert len(found[1]) == len(wanted[1]) > 0
    return all(torch.equal(a, b) for a, b in zip((found[0], *found[1]), (wanted[0], *wanted[1]), strict=True))


@pytest.mark.parametrize("family", SIZES)
def test_log_probabilities_and_gradients_are_those_of_embeddings_in_fp32_to_the_bit(family: str) -> None:
    policy = PolicyModel(shaken(add_lora(make(family), 4, 8, 0.0)))
    assert not torch.equal(*[losses(policy)[0][i] for i in (0, 1)])
    exact = losses(policy)
    round_frozen_layers(policy.model)
    assert words_of(policy.model).weight.dtype == torch.float32
    assert same(losses(policy), exact)
    round_frozen_weights(policy.model)
    words, head = words_of(policy.model), policy.causal.get_output_embeddings()
    assert words.weight.dtype == head.weight.dtype == torch.bfloat16
    assert (head.weight is words.weight) == (family not in ("llama", "gpt_neox"))
    assert words(torch.tensor([[3, 4]])).dtype == torch.float32  # as the states between layers are
    assert same(losses(policy), exact)
    assert autocast_dtype(policy.causal) == torch.bfloat16


def test_a_frozen_table_beside_trained_layers_follows_and_one_that_learns_does_not() -> None:
    policy = PolicyModel(make("qwen3"))
    words = words_of(policy.model)
    round_frozen_weights(policy.model)
    assert words.weight.dtype == torch.float32
    assert autocast_dtype(policy.causal) is None
    words.requires_grad_(False)
    exact = losses(policy)
    round_frozen_weights(policy.model)
    assert words.weight.dtype == torch.bfloat16
    assert same(losses(policy), exact)
    assert autocast_dtype(policy.causal) == torch.bfloat16  # the head, whose weights they are, needs it


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_a_scorers_logits_and_gradients_are_those_of_embeddings_in_fp32_to_the_bit(family: str) -> None:
    torch.manual_seed(0)
    sizes = SIZES[family] if family == "llama" else LAYERS | {"hidden_size": 32}
    scorer = ScoringModel(add_lora(from_bf16(new_classifier(AutoConfig.for_model(family, **IDS, **sizes))), 4, 8, 0.0))
    ids = torch.tensor([row[:10] for row in ROWS])

    def run() -> tuple[torch.Tensor, list[torch.Tensor]]:
        scorer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            logits = scorer.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        logits.sum().backward()
        return logits.detach(), [p.grad.clone() for p in scorer.parameters() if p.requires_grad and p.grad is not None]

    exact = run()
    round_frozen_weights(scorer.model)
    assert words_of(scorer.model).weight.dtype == torch.bfloat16
    assert same(run(), exact)


@pytest.mark.parametrize(
    ("number", "survives"), [(0.5, True), (0.0, True), (2**-130, True), (1 + 2**-7, True), (1 + 2**-8, False)]
)
def test_a_table_is_rounded_only_if_every_number_survives(number: float, survives: bool) -> None:
    model = add_lora(make("llama"), 4, 8, 0.0)
    weight = words_of(model).weight
    weight.data[-1, -1] = number
    before = weight.clone()
    assert survives_bf16(weight) == survives
    round_frozen_weights(model)
    assert weight.dtype == (torch.bfloat16 if survives else torch.float32)
    assert torch.equal(weight.float(), before)


def test_numbers_are_compared_in_blocks_to_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmgym.models.embeddings.BLOCK", 8)
    weight = torch.ones(5, 4)
    assert survives_bf16(weight)
    weight[4, 3] += 2**-8
    assert not survives_bf16(weight)


def test_a_vocabulary_that_was_extended_stays_in_fp32(small_models) -> None:
    tokenizer = load_tokenizer(str(small_models["llama"]))
    model = from_bf16(load_policy(str(small_models["llama"]), tokenizer))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<new>"]})
    fit_to_tokenizer(model, tokenizer)
    round_frozen_weights(add_lora(model, 4, 8, 0.0))
    assert model.get_input_embeddings().weight.dtype == torch.float32


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text"])
def test_embeddings_that_are_multiplied_by_a_factor_of_their_dtype_stay_in_fp32(family: str) -> None:
    policy = PolicyModel(shaken(add_lora(make(family, GEMMA), 4, 8, 0.0)))
    exact = losses(policy)
    round_frozen_weights(policy.model)
    assert words_of(policy.model).weight.dtype == torch.float32
    assert same(losses(policy), exact)


@pytest.mark.parametrize("rounded", [True, False])
def test_the_model_without_adapters_keeps_its_own_embeddings_beside_a_trained_copy(rounded: bool) -> None:
    """Tied, so that the head's own weights are the table's; also where the table would lose something in bf16."""
    model = make("qwen3")
    if not rounded:
        model.get_input_embeddings().weight.data.mul_(1 + 2**-9)
    policy = PolicyModel(shaken(add_lora(model, 4, 8, 0.0, whole="embed_tokens")))
    assert policy.causal.get_input_embeddings().weight.requires_grad
    exact = losses(policy)
    [own] = frozen_embeddings(policy.model)

    def reference() -> torch.Tensor:
        with torch.no_grad(), policy.model.disable_adapter(), torch.autocast("cpu", torch.bfloat16):
            return policy(pack_rows(ROWS, READS))

    before = reference()
    round_frozen_weights(policy.model)
    assert own.weight.dtype == (torch.bfloat16 if rounded else torch.float32)
    assert torch.equal(reference(), before)
    assert same(losses(policy), exact)
    assert policy.causal.get_input_embeddings().weight.dtype == torch.float32


def test_a_forward_that_was_set_on_the_module_itself_gives_fp32_too() -> None:
    """As accelerate does to modules that it dispatches."""
    policy = PolicyModel(shaken(add_lora(make("qwen3"), 4, 8, 0.0)))
    words = words_of(policy.model)
    vars(words)["forward"] = words.forward
    exact = losses(policy)
    round_frozen_weights(policy.model)
    assert words.weight.dtype == torch.bfloat16
    assert words(torch.tensor([3])).dtype == torch.float32
    assert same(losses(policy), exact)


def test_adapters_of_the_embeddings_themselves_learn_as_before() -> None:
    policy = PolicyModel(add_lora(make("llama"), 4, 8, 0.0, targets="q_proj,embed_tokens"))
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.1)
    exact = losses(policy)
    round_frozen_weights(policy.model)
    assert [module.weight.dtype for module in frozen_embeddings(policy.model)] == [torch.bfloat16]
    assert same(losses(policy), exact)


@pytest.mark.parametrize("family", ["gpt_neox", "qwen3"])
def test_the_wider_forward_is_that_of_embeddings_in_fp32(family: str) -> None:
    policy = PolicyModel(shaken(add_lora(make(family), 4, 8, 0.0)))
    targets = torch.tensor([id_ for row, reads in zip(ROWS, READS, strict=True) for id_ in row[-reads:]])
    found = []
    for change in (round_frozen_layers, round_frozen_weights):
        change(policy.model)
        for dtype in (torch.float32, torch.float64):
            with torch.no_grad():
                found.append(wider_logprobs(policy.decoder, pack_rows(ROWS, READS), targets, 1.0, dtype))
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])
    assert not torch.equal(found[2], found[3])


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_merged_weights_are_those_of_embeddings_in_fp32(family: str, small_models, tmp_path: Path) -> None:
    folder, written = str(small_models[family]), []
    for change in (round_frozen_layers, round_frozen_weights):
        tokenizer = load_tokenizer(folder)
        torch.manual_seed(0)
        model = shaken(add_lora(from_bf16(load_policy(folder, tokenizer)), 4, 8, 0.0))
        change(model)
        saved = save_policy(model, model.state_dict(), tmp_path / change.__name__, tokenizer, merge=True)
        written.append(load_file(saved / "model.safetensors"))
    assert words_of(model).weight.dtype == torch.bfloat16
    assert written[0].keys() == written[1].keys()
    for name, weight in written[0].items():
        assert weight.dtype == written[1][name].dtype == torch.float32
        assert torch.equal(weight, written[1][name])


def test_a_checkpoint_with_embeddings_in_fp32_is_resumed_with_the_same_numbers(tmp_path: Path) -> None:
    older, newer = (PolicyModel(make("qwen3")) for _ in range(2))
    for policy, change in ((older, round_frozen_layers), (newer, round_frozen_weights)):
        words_of(policy.model).requires_grad_(False)
        change(policy.model)
    with torch.no_grad():
        older.causal.model.norm.weight.add_(0.1)
    save_weights(older, tmp_path / "older.safetensors")
    load_weights(newer, tmp_path / "older.safetensors")
    assert words_of(newer.model).weight.dtype == torch.bfloat16
    assert same(losses(newer), losses(older))


def test_replies_are_those_of_embeddings_in_fp32(small_models) -> None:
    folder, replies = str(small_models["qwen3"]), []
    tokenizer = load_tokenizer(folder)
    for change in (round_frozen_layers, round_frozen_weights):
        torch.manual_seed(0)
        policy = PolicyModel(shaken(add_lora(from_bf16(load_policy(folder, tokenizer)), 4, 8, 0.0)))
        change(policy.model)
        generator = LocalGenerator(policy.causal, tokenizer, decoder=policy.decoder)
        assert generator.autocast == torch.bfloat16
        replies.append(generator.generate([ROWS[0], ROWS[1]], 2, Sampling(8, seed=1, ends_at_eos=False)))
    assert [[(r.ids, r.logprobs) for r in group] for group in replies[0]] == [
        [(r.ids, r.logprobs) for r in group] for group in replies[1]
    ]
