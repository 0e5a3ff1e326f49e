"""Converts models from GGUF, the file format of llama.cpp, to Hugging Face folders. Nothing is executed.

Supports the types F32, Q4_1 and Q8_0, and the architecture Llama with a byte-level BPE.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedTokenizerFast

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, LIST = 8, 9
F32, Q4_1, Q8_0 = 0, 3, 8
BLOCK = 32  # weights that share a scale
SPECIAL_TOKEN = 3
LAYER_WEIGHTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass
class _Reader:
    """Reads the values of a file's header in order."""

    data: bytes
    at: int = 0

    def scalar(self, kind: str) -> Any:
        (value,) = struct.unpack_from(f"<{kind}", self.data, self.at)
        self.at += struct.calcsize(f"<{kind}")
        return value

    def text(self) -> str:
        size = self.scalar("Q")
        self.at += size
        return self.data[self.at - size : self.at].decode()

    def value(self, kind: int) -> Any:
        if kind == TEXT:
            return self.text()
        if kind == LIST:
            item, count = self.scalar("I"), self.scalar("Q")
            return [self.value(item) for _ in range(count)]
        return self.scalar(SCALARS[kind])


@dataclass(frozen=True)
class Gguf:
    """A GGUF file: its fields and tensors by name; `tensor` reads a tensor."""

    data: bytes = field(repr=False)
    fields: Mapping[str, Any] = field(repr=False)
    tensors: Mapping[str, tuple[tuple[int, ...], int, int]]
    """shape, type and position of each tensor"""

    @classmethod
    def parse(cls, data: bytes) -> "Gguf":
        """Parses the header. Raises ValueError for another format or version."""
        if data[:4] != b"GGUF":
            raise ValueError(f"not a GGUF file: it begins with {data[:4]!r}")
        reader = _Reader(data, 4)
        if (version := reader.scalar("I")) != 3:
            raise ValueError(f"GGUF version {version}; needed: 3")
        tensor_count, field_count = reader.scalar("Q"), reader.scalar("Q")
        fields = {reader.text(): reader.value(reader.scalar("I")) for _ in range(field_count)}
        entries = {}
        for _ in range(tensor_count):
            name, dimensions = reader.text(), reader.scalar("I")
            shape = tuple(reader.scalar("Q") for _ in range(dimensions))[::-1]
            entries[name] = shape, reader.scalar("I"), reader.scalar("Q")
        alignment = fields.get("general.alignment", 32)
        start = math.ceil(reader.at / alignment) * alignment
        return cls(data, fields, {name: (shape, kind, start + at) for name, (shape, kind, at) in entries.items()})

    def tensor(self, name: str) -> np.ndarray:
        """A tensor in fp32, dequantised: scale * q + minimum (Q4_1) or scale * q (Q8_0), for blocks of 32 weights.

        Raises ValueError for an unsupported type.
        """
        shape, kind, first = self.tensors[name]
        count = math.prod(shape)
        if kind == F32:
            return np.frombuffer(self.data, np.float32, count, first).reshape(shape)
        if kind not in (Q4_1, Q8_0):
            raise ValueError(f"tensor {name} is of GGUF type {kind}; needed: F32 (0), Q4_1 (3) or Q8_0 (8)")
        size = 4 + BLOCK // 2 if kind == Q4_1 else 2 + BLOCK
        blocks = np.frombuffer(self.data, np.uint8, count // BLOCK * size, first).reshape(-1, size)
        scale = _halves(blocks[:, :2])
        if kind == Q8_0:
            return (scale * blocks[:, 2:].view(np.int8)).reshape(shape)
        packed = blocks[:, 4:]  # the first half of a block in the low bits, the second in the high ones
        quantised = np.concatenate([packed & 15, packed >> 4], 1)
        return (scale * quantised + _halves(blocks[:, 2:4])).reshape(shape)


def _halves(raw: np.ndarray) -> np.ndarray:
    """Rows of two bytes, each an fp16 number, in fp32."""
    return raw.copy().view(np.float16).astype(np.float32)


def write_llama(gguf: Gguf, folder: Path, dtype: torch.dtype) -> None:
    """Writes config, weights and tokenizer to an existing folder. Raises ValueError for any model but a Llama."""
    kind = gguf.fields.get("general.architecture"), gguf.fields.get("tokenizer.ggml.pre")
    if kind != ("llama", "smollm"):
        raise ValueError(f"architecture and tokenizer {kind}; needed: ('llama', 'smollm')")
    config = _config(gguf.fields, dtype)
    save_file(_llama_weights(gguf, config, dtype), folder / "model.safetensors", {"format": "pt"})
    config.save_pretrained(folder)
    _tokenizer(gguf.fields).save_pretrained(folder)


def _config(fields: Mapping[str, Any], dtype: torch.dtype) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=len(fields["tokenizer.ggml.tokens"]),
        hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"],
        num_hidden_layers=fields["llama.block_count"],
        num_attention_heads=fields["llama.attention.head_count"],
        num_key_value_heads=fields["llama.attention.head_count_kv"],
        max_position_embeddings=fields["llama.context_length"],
        rms_norm_eps=float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),  # stored in 32 bits
        rope_parameters={"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]},
        tie_word_embeddings=True,
        bos_token_id=fields["tokenizer.ggml.bos_token_id"],
        eos_token_id=fields["tokenizer.ggml.eos_token_id"],
        pad_token_id=fields["tokenizer.ggml.padding_token_id"],
        dtype=dtype,
        architectures=["LlamaForCausalLM"],
    )


def _llama_weights(gguf: Gguf, config: LlamaConfig, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The weights under the names of transformers. Raises ValueError for missing and unknown tensors."""
    names = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    for layer in range(config.num_hidden_layers):
        for short, long in LAYER_WEIGHTS.items():
            names[f"blk.{layer}.{short}.weight"] = f"model.layers.{layer}.{long}.weight"
    if names.keys() != gguf.tensors.keys():
        differing = sorted(names.keys() ^ gguf.tensors.keys())[:5]
        raise ValueError(f"missing or unknown tensors for a Llama with tied embeddings: {differing}")
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    weights = {}
    for source, name in names.items():
        weight = gguf.tensor(source)
        head_count = next((count for short, count in heads.items() if f".{short}." in source), None)
        if head_count is not None:
            weight = _rotary_halves(weight, head_count)
        # contiguous for safetensors, and a writable copy for torch
        weights[name] = torch.from_numpy(np.require(weight, requirements=["C", "W"])).to(dtype)
    return weights


def _rotary_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of queries or keys in the order of transformers, which rotates halves; llama.cpp rotates adjacent pairs."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _tokenizer(fields: Mapping[str, Any]) -> PreTrainedTokenizerFast:
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    bpe = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    # the pre-tokenizer that llama.cpp calls "smollm": each digit is a token
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"]
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == SPECIAL_TOKEN]
    bpe.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=tokens[fields["tokenizer.ggml.bos_token_id"]],
        eos_token=tokens[fields["tokenizer.ggml.eos_token_id"]],
        unk_token=tokens[fields["tokenizer.ggml.unknown_token_id"]],
        pad_token=tokens[fields["tokenizer.ggml.padding_token_id"]],
        model_max_length=fields["llama.context_length"],
        chat_template=fields["tokenizer.chat_template"],
        clean_up_tokenization_spaces=False,
    )
