"""GGUF files: quantised blocks by hand, and a small model with the same logits as before conversion."""

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_gguf import tiny_fields, tiny_gguf, tiny_llama, tiny_tensors, write_gguf
from transformers import AutoModelForCausalLM, AutoTokenizer

from lmgym.cli.gguf import Gguf, write_llama


def half(value: float) -> bytes:
    return struct.pack("<e", value)


def test_a_block_of_q4_1_has_its_first_half_in_the_low_bits_and_adds_a_minimum() -> None:
    quantised = bytes(low | (15 - low) << 4 for low in range(16))
    blocks = half(0.5) + half(-1.0) + quantised + half(2.0) + half(0.25) + bytes(16)
    gguf = Gguf.parse(write_gguf({}, {"w": ((2, 32), 3, blocks)}))
    first = [0.5 * q - 1 for q in range(16)] + [0.5 * (15 - q) - 1 for q in range(16)]
    np.testing.assert_array_equal(gguf.tensor("w"), np.array([first, [0.25] * 32], np.float32))


def test_a_block_of_q8_0_is_a_scale_times_signed_bytes() -> None:
    numbers = [-128, -1, 0, 127, *range(28)]
    gguf = Gguf.parse(write_gguf({}, {"w": ((32,), 8, half(0.25) + struct.pack("<32b", *numbers))}))
    np.testing.assert_array_equal(gguf.tensor("w"), np.array(numbers, np.float32) / 4)


def test_fields_and_several_tensors_are_read() -> None:
    fields = {"a.text": "wörd", "a.number": 7, "a.fraction": 0.5, "a.list": ["x", "", "zz"]}
    rows = np.arange(6, dtype="<f4").reshape(2, 3)
    gguf = Gguf.parse(write_gguf(fields, {"one": ((1,), 0, b"\0\0\x80?"), "rows": ((2, 3), 0, rows.tobytes())}))
    assert dict(gguf.fields) == fields
    assert gguf.tensor("one").tolist() == [1.0]
    np.testing.assert_array_equal(gguf.tensor("rows"), rows)


def test_the_folder_of_a_llama_loads_and_gives_the_same_logits(tmp_path: Path) -> None:
    write_llama(Gguf.parse(tiny_gguf()), tmp_path, torch.float32)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.randint(0, model.config.vocab_size, (2, 17), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected, found = tiny_llama()(ids).logits, model(ids).logits
    assert expected.std() > 0.5
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert (model.config.bos_token_id, model.config.eos_token_id, model.config.pad_token_id) == (1, 2, 2)
    assert model.config.rms_norm_eps == 1e-5


def test_weights_are_rounded_to_the_requested_type(tmp_path: Path) -> None:
    write_llama(Gguf.parse(tiny_gguf()), tmp_path, torch.bfloat16)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model.dtype == torch.bfloat16
    expected = tiny_llama().model.layers[1].mlp.up_proj.weight.to(torch.bfloat16)
    assert torch.equal(model.model.layers[1].mlp.up_proj.weight, expected)


def test_its_tokenizer_merges_splits_digits_and_keeps_special_tokens_whole(tmp_path: Path) -> None:
    write_llama(Gguf.parse(tiny_gguf()), tmp_path, torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.tokenize("hello 12") == ["hello", "Ġ", "1", "2"], "12 is a merge, which digits never use"
    assert tokenizer.encode("<|im_start|>hé<|im_end|>")[::4] == [1, 2]
    assert tokenizer.decode(tokenizer.encode("hé, 12!")) == "hé, 12!"
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == ("<|im_start|>", *["<|im_end|>"] * 2)
    assert tokenizer.model_max_length == 128
    chat = [{"role": "user", "content": "hello"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"PK\3\4 a zip file", "not a GGUF file: it begins with b'PK"),
        (write_gguf({}, {}, version=2), "version 2; needed: 3"),
    ],
)
def test_a_file_of_another_format_or_version_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Gguf.parse(data)


def test_an_unsupported_model_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    tensors = tiny_tensors(tiny_llama())
    files = {
        "architecture and tokenizer": write_gguf(tiny_fields() | {"general.architecture": "gemma"}, tensors),
        "missing or unknown tensors": write_gguf(tiny_fields(), tensors | {"rope_freqs.weight": ((1,), 0, bytes(4))}),
        "of GGUF type 12": write_gguf(tiny_fields(), tensors | {"output_norm.weight": ((64,), 12, bytes(256))}),
    }
    for message, data in files.items():
        with pytest.raises(ValueError, match=message):
            write_llama(Gguf.parse(data), tmp_path, torch.float32)
    assert list(tmp_path.iterdir()) == []
