"""Causal models that are trained: packed rows against each row alone, what is loaded, refused and saved."""

import copy
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from families import three_families
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from lmgym.errors import InputError
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling
from lmgym.models.forward.policies import PolicyModel, load_policy, merged_copy, save_policy
from lmgym.models.loading import fit_to_tokenizer, load_tokenizer
from lmgym.models.lora import add_lora
from lmgym.text import Conversation, Turn
from lmgym.training.setup import CHECKPOINTING

VOCABULARY, PAD = 97, 0
SETTINGS = three_families(2)
FAMILIES = tuple(SETTINGS)
Row = tuple[list[int], list[int], list[int]]  # ids, places, targets


def plain_model(family: str, seed: int = 0):
    """A causal model whose weights are large enough for every token to matter."""
    ids = {"pad_token_id": PAD, "eos_token_id": 1, "bos_token_id": 2}
    config = AutoConfig.for_model(family, vocab_size=VOCABULARY, **ids, **SETTINGS[family])
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0) if parameter.ndim == 2 else parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def rows_of(lengths: Sequence[int], seed: int = 0) -> list[Row]:
    """Rows of random ids, with loss at a random third of their places; targets are not always the next token."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for length in lengths:
        ids = torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()
        chosen = torch.rand(length, generator=generator) < 0.33
        chosen[int(torch.randint(length, (1,), generator=generator))] = True
        places = chosen.nonzero()[:, 0].tolist()
        rows.append((ids, places, torch.randint(3, VOCABULARY, (len(places),), generator=generator).tolist()))
    return rows


LENGTHS = {"ragged": [40, 3, 17, 25, 1, 33], "equal": [9, 9, 9], "one": [12]}


def alone(model, rows: Sequence[Row]) -> torch.Tensor:
    """The summed loss of rows that each run by themselves through the model's own forward."""
    losses = []
    for ids, places, targets in rows:
        logits = model(input_ids=torch.tensor([ids])).logits[0, places]
        losses.append(F.cross_entropy(logits, torch.tensor(targets), reduction="sum"))
    return torch.stack(losses).sum()


def together(policy: PolicyModel, rows: Sequence[Row]) -> torch.Tensor:
    """The same loss of one forward."""
    ids, places, targets = zip(*rows, strict=True)
    logits = policy(**policy.collate(ids, places))
    return F.cross_entropy(logits, torch.tensor([t for row in targets for t in row]), reduction="sum")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("way", ["packed", "padded", "packed and checkpointed"])
def test_loss_and_all_gradients_are_those_of_each_row_alone(family: str, lengths: str, way: str) -> None:
    plain, rows = plain_model(family), rows_of(LENGTHS[lengths])
    inner = copy.deepcopy(plain)
    if "checkpointed" in way:
        inner.gradient_checkpointing_enable(gradient_checkpointing_kwargs=CHECKPOINTING)
        inner.train()
    policy = PolicyModel(inner, packed="packed" in way)
    assert policy.packed == ("packed" in way)
    expected, found = alone(plain, rows), together(policy, rows)
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    expected.backward()
    found.backward()
    theirs = dict(plain.named_parameters())
    everything = torch.cat([p.grad.flatten() for p in theirs.values()]).norm()
    for name, parameter in inner.named_parameters():
        error = (parameter.grad - theirs[name].grad).norm()
        assert error <= 1e-5 * theirs[name].grad.norm() + 1e-6 * everything, name


@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_runs_only_where_tokens_have_loss(family: str) -> None:
    policy, rows = PolicyModel(plain_model(family)), rows_of(LENGTHS["ragged"])
    seen: list[int] = []
    policy.causal.get_output_embeddings().register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[-2]))
    logits = policy(**policy.collate([r[0] for r in rows], [r[1] for r in rows]))
    places = sum(len(r[1]) for r in rows)
    assert seen == [places]
    assert logits.shape == (places, VOCABULARY)
    assert logits.dtype == torch.float32


def test_a_family_with_its_own_attention_runs_padded_with_the_reason() -> None:
    config = AutoConfig.for_model("bloom", vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4)
    torch.manual_seed(0)
    plain = AutoModelForCausalLM.from_config(config).eval()
    policy, rows = PolicyModel(plain), rows_of(LENGTHS["ragged"])
    assert not policy.packed
    because = "2 of its 2 layers do not do their attention through transformers"
    assert policy.decoder.note == f"rows of this bloom are padded: {because}"
    with torch.no_grad():
        assert together(policy, rows).item() == pytest.approx(alone(plain, rows).item(), rel=1e-5)
    with pytest.raises(InputError, match=f"--packed: rows of a bloom cannot be packed: {because}; leave --packed out"):
        PolicyModel(plain, packed=True)


# --- loading


def test_a_policys_replies_end_at_the_tokenizers_eos_and_at_the_folders(
    small_models: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(small_models["llama"], folder)
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(settings | {"eos_token_id": [7, 9]}))
    tokenizer = load_tokenizer(str(folder))
    assert load_policy(str(folder), tokenizer).generation_config.eos_token_id == [7, 9, tokenizer.eos_token_id]
    assert load_policy(str(small_models["llama"]), tokenizer).generation_config.eos_token_id == tokenizer.eos_token_id


def test_a_folder_without_eos_is_refused_with_the_fix(small_models: dict[str, Path]) -> None:
    tokenizer = load_tokenizer(str(small_models["llama"]))
    tokenizer.eos_token = None
    with pytest.raises(
        InputError, match=r"has no eos token: found eos_token null .* name one in tokenizer_config.json"
    ):
        load_policy(str(small_models["llama"]), tokenizer)


def test_a_scorer_and_a_folder_of_pickles_are_no_policies(
    small_models: dict[str, Path], scorer_folders: dict[str, Path], tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(str(small_models["llama"]))
    with pytest.raises(
        InputError, match=r"not a causal model: it lacks lm_head.weight .* a scorer cannot generate text"
    ):
        load_policy(str(scorer_folders["llama"]), tokenizer)
    # whose embeddings are tied: nothing is missing
    with pytest.raises(
        InputError,
        match=r"it holds score.weight \(GPT2ForSequenceClassification\).* needed: a causal model",
    ):
        load_policy(str(scorer_folders["gpt2"]), load_tokenizer(str(scorer_folders["gpt2"])))
    assert load_policy(str(small_models["gpt2"]), load_tokenizer(str(small_models["gpt2"])))
    folder = tmp_path / "pickled"
    shutil.copytree(small_models["llama"], folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="a pickle"):
        load_policy(str(folder), tokenizer)


# --- saving


def talk(folder: Path) -> list[str]:
    """Greedy and sampled replies of a folder, loaded as anybody would."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    return replies_of(model, load_tokenizer(str(folder)))


def replies_of(model, tokenizer) -> list[str]:
    conversation = Conversation((Turn("user", "what about tea?"),))
    generator = LocalGenerator(model, tokenizer)
    return [r.text for r in generator.reply([conversation], 3, Sampling(12, seed=3))[0]]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("lora", [False, True])
def test_a_saved_policy_gives_the_replies_of_the_trained_one(
    family: str, lora: bool, small_models: dict[str, Path], tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(str(small_models[family]))
    model = load_policy(str(small_models[family]), tokenizer)
    torch.manual_seed(1)
    if lora:
        model = add_lora(model, 4, 32, 0.0)
        assert not any("lm_head" in name for name, p in model.named_parameters() if p.requires_grad)
    policy = PolicyModel(model)
    with torch.no_grad():
        for parameter in (p for p in policy.parameters() if p.requires_grad):
            parameter.add_(torch.randn_like(parameter) * 0.3)
    state = {name.removeprefix("model."): value.clone() for name, value in policy.state_dict().items()}
    replies = replies_of(policy.causal, tokenizer)
    assert replies_of(merged_copy(policy.model, state), tokenizer) == replies
    folder = save_policy(policy.model, state, tmp_path, tokenizer, merge=True)
    assert folder == tmp_path / "model"
    assert talk(folder) == replies
    assert replies != talk(small_models[family])
    assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"
    assert AutoTokenizer.from_pretrained(folder).chat_template == tokenizer.chat_template
    assert (tmp_path / "adapter").exists() == lora


def test_an_adapter_is_saved_alone_unless_merged_and_loads_on_its_base(
    small_models: dict[str, Path], tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(str(small_models["llama"]))
    model = add_lora(load_policy(str(small_models["llama"]), tokenizer), 4, 32, 0.0)
    with torch.no_grad():
        for parameter in (p for p in model.parameters() if p.requires_grad):
            parameter.add_(torch.randn_like(parameter) * 0.3)
    folder = save_policy(model, model.state_dict(), tmp_path, tokenizer, merge=False)
    assert folder == tmp_path / "adapter"
    assert not (tmp_path / "model").exists()
    loaded = AutoModelForCausalLM.from_pretrained(folder).eval()  # peft's folder names its base
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, model.eval()(ids).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_embedding_of_a_new_token_is_the_mean_of_the_others(family: str, small_models) -> None:
    tokenizer = load_tokenizer(str(small_models[family]))
    model = AutoModelForCausalLM.from_pretrained(small_models[family])
    known, before = model.get_output_embeddings().weight.shape[0], model.get_output_embeddings().weight.detach().clone()
    tokenizer.add_tokens(["<|new|>", "<|newer|>"])
    fit_to_tokenizer(model, tokenizer)
    for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
        assert layer.weight.shape[0] == known + 2 == len(tokenizer)
        assert torch.allclose(layer.weight[known:], layer.weight[:known].mean(0).expand(2, -1), atol=1e-7)
    assert torch.equal(model.get_output_embeddings().weight[:known], before)
    logits = model(torch.tensor([[3, 4, 5]])).logits
    assert torch.allclose(logits[..., known:], logits[..., :known].mean(-1, keepdim=True), atol=1e-5)
