"""The tokenizer's ids and the model's rows: which token pads, and which ids have no text."""

from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from lmgym.models.forward.policies import load_policy
from lmgym.models.loading import fit_to_tokenizer, load_tokenizer


def save_tokenizer(folder: Path, specials: tuple[str, ...], byte_level: bool = True, **roles: str) -> None:
    """One of 256 bytes and these special tokens behind them; with `byte_level` False of four letters."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet()) if byte_level else ["a", "b", "c", "d"]
    ids = {token: i for i, token in enumerate([*letters, *specials])}
    core = Tokenizer(models.BPE(ids, [], unk_token=roles.get("unk_token")))
    if byte_level:
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(token, special=True) for token in specials])
    PreTrainedTokenizerFast(tokenizer_object=core, **roles).save_pretrained(folder)
    (folder / "config.json").write_text("{}")  # a folder without one is none of a model


def save_model(folder: Path, rows: int) -> None:
    config = AutoConfig.for_model(
        "llama", vocab_size=rows, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32,
        max_position_embeddings=64, bos_token_id=None, eos_token_id=256, pad_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


@pytest.mark.parametrize(
    ("specials", "roles", "pad"),
    [
        # as Llama 3: one is called so
        (("<eos>", "<|reserved_special_token_0|>"), {}, "<|reserved_special_token_0|>"),
        (("<eos>", "<tool>", "<|finetune_right_pad_id|>"), {}, "<|finetune_right_pad_id|>"),
        (("<eos>", "<unused0>"), {"pad_token": "<eos>"}, "<unused0>"),
        # as SmolLM2: no text of bytes gives unk
        (("<eos>", "<|endoftext|>"), {"unk_token": "<|endoftext|>", "pad_token": "<eos>"}, "<|endoftext|>"),
    ],
)
def test_an_unused_special_token_pads_and_the_embeddings_do_not_grow(
    specials: tuple[str, ...], roles: dict[str, str], pad: str, tmp_path: Path
) -> None:
    save_tokenizer(tmp_path, specials, eos_token="<eos>", **roles)
    save_model(tmp_path, 256 + len(specials))
    tokenizer = load_tokenizer(str(tmp_path))
    assert tokenizer.pad_token == pad
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    model = load_policy(str(tmp_path), tokenizer)
    assert model.get_input_embeddings().num_embeddings == 256 + len(specials)
    assert model.config.pad_token_id == tokenizer.pad_token_id
    model.save_pretrained(tmp_path / "again")
    tokenizer.save_pretrained(tmp_path / "again")
    assert load_tokenizer(str(tmp_path / "again")).pad_token == pad


@pytest.mark.parametrize(
    ("specials", "roles"),
    [
        (("<eos>",), {}),
        (("<eos>",), {"unk_token": "<eos>"}),  # as GPT-2: unk is eos
        (("<eos>", "<tool>"), {}),  # has a meaning
        (("<eos>", "<pad_of_mask>"), {"mask_token": "<pad_of_mask>"}),
        (("<eos>", "<padlock>"), {}),
    ],
)
def test_a_token_with_a_role_is_not_used_as_padding(specials: tuple[str, ...], roles: dict[str, str], tmp_path) -> None:
    save_tokenizer(tmp_path, specials, eos_token="<eos>", **roles)
    assert load_tokenizer(str(tmp_path)).pad_token == "<eos>"


def test_a_token_of_the_chat_template_is_not_used_as_padding(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, ("<eos>", "<|pad_turn|>"), eos_token="<eos>")
    assert load_tokenizer(str(tmp_path)).pad_token == "<|pad_turn|>"
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}<|pad_turn|>{{ m.content }}{% endfor %}")
    assert load_tokenizer(str(tmp_path)).pad_token == "<eos>"


def test_an_unk_that_texts_produce_is_not_used_as_padding(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, ("<eos>", "<unk>"), byte_level=False, eos_token="<eos>", unk_token="<unk>")
    assert load_tokenizer(str(tmp_path)).pad_token == "<eos>"


@pytest.mark.parametrize("rows", [257, 320])
def test_a_policy_whose_tokenizer_has_no_pad_token_keeps_its_embeddings(rows: int, tmp_path: Path) -> None:
    save_tokenizer(tmp_path, ("<eos>",), eos_token="<eos>")
    save_model(tmp_path, rows)
    tokenizer = load_tokenizer(str(tmp_path))
    assert (tokenizer.pad_token_id, len(tokenizer)) == (256, 257)
    model = load_policy(str(tmp_path), tokenizer)
    before = AutoModelForCausalLM.from_pretrained(tmp_path).get_input_embeddings().weight
    assert torch.equal(model.get_input_embeddings().weight, before)
    assert model.generation_config.pad_token_id == 256  # transformers' generate needs one


def test_a_model_grows_to_the_tokenizers_largest_id(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, ("<eos>", "<pad>"), eos_token="<eos>", pad_token="<pad>")
    save_model(tmp_path, 258)
    tokenizer = load_tokenizer(str(tmp_path))
    model = load_policy(str(tmp_path), tokenizer)
    ids = tokenizer.get_vocab()
    tokenizer.get_vocab = lambda: {token: i for token, i in ids.items() if i not in (7, 9)} | {"<far>": 300}
    fit_to_tokenizer(model, tokenizer)
    assert model.get_input_embeddings().num_embeddings == 301  # by the largest id, not by how many there are
