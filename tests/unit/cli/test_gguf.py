"""A model of a GGUF file: the same logits as before conversion, and a tokenizer that splits digits."""

from pathlib import Path

import pytest
import torch
from tiny_gguf import tiny_gguf, tiny_llama
from transformers import AutoModelForCausalLM, AutoTokenizer

from lmgym.cli.get import convert


def test_the_folder_of_a_llama_loads_and_gives_the_same_logits(tmp_path: Path) -> None:
    convert(tiny_gguf(), tmp_path, "fp32")
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.randint(0, model.config.vocab_size, (2, 17), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected, found = tiny_llama()(ids).logits, model(ids).logits
    assert expected.std() > 0.5
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert (model.config.bos_token_id, model.config.eos_token_id, model.config.pad_token_id) == (1, 2, 2)
    assert model.config.rms_norm_eps == pytest.approx(1e-5)
    assert model.config.rope_parameters["rope_theta"] == 5000


def test_weights_are_rounded_to_the_requested_type(tmp_path: Path) -> None:
    convert(tiny_gguf(), tmp_path, "bf16")
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model.dtype == torch.bfloat16
    expected = tiny_llama().model.layers[1].mlp.up_proj.weight.to(torch.bfloat16)
    assert torch.equal(model.model.layers[1].mlp.up_proj.weight, expected)


def test_its_tokenizer_merges_splits_digits_and_keeps_special_tokens_whole(tmp_path: Path) -> None:
    convert(tiny_gguf(), tmp_path, "fp32")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.tokenize("hello 12") == ["hello", "Ġ", "1", "2"], "12 is a merge, which digits never use"
    assert tokenizer.tokenize("\n\n1") == ["ĊĊ", "1"], "a blank line before a digit is one token"
    assert tokenizer.encode("<|im_start|>hé<|im_end|>")[::4] == [1, 2]
    assert tokenizer.decode(tokenizer.encode("hé, 12!")) == "hé, 12!"
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == ("<|im_start|>", *["<|im_end|>"] * 2)
    assert tokenizer.model_max_length == 128
    chat = [{"role": "user", "content": "hello"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
