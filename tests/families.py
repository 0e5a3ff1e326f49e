"""Tiny random decoders of many families, each with what is special to it active: windows, softcaps, scales.

FAMILIES go through every stage (tests/experiments/test_families.py); OTHERS are checked at the level of the forward
(test_family_forwards.py). The longest rows exceed every window. Weights are large, so that a token far back,
and each special feature, changes the logits: `Family.special` names the settings whose removal must be seen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from lmgym.models.small_models import build_model

LAYERS, WIDTH, HEADS, CONTEXT, WINDOW = 4, 32, 4, 320, 12
LENGTHS = (40, 31, 25, 7)  # of rows
QUICK = ("gemma2", "mistral")  # the families whose forwards `make test` runs
DIFFERENT = (
    "gpt2", "opt", "gptj", "gpt_neo", "falcon", "bloom", "gemma2", "gpt_oss", "mixtral", "qwen3_next", "mamba", "jamba"
)  # fmt: skip
"""families that differ in how they run, which `make test` takes through every stage: Conv1D, learned positions, own
attention, ALiBi, soft caps and windows, sinks, experts, recurrence, and hybrids"""
NO_SCORER_CLASS = ("granite", "mamba")  # transformers has none: the head is our own


@dataclass(frozen=True)
class Family:
    """A kind of decoder: the fields of its config beside the common ones, and what is to be seen of it."""

    name: str
    """`model_type` in transformers"""
    settings: Mapping[str, Any] = field(default_factory=dict)
    special: Mapping[str, Any] = field(default_factory=dict)
    """settings that change the logits if they are replaced by these values, one by one"""
    why_padded: str = ""
    """empty where rows run packed; else how the reason that is given at load begins"""
    gain: float = 6.0
    """weight matrices, drawn with a standard deviation of .02, are multiplied by it"""


def common(kv_heads: int = 2) -> dict[str, Any]:
    """The size, in the words of most configs."""
    return {
        "num_hidden_layers": LAYERS,
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "num_key_value_heads": kv_heads,
        "intermediate_size": 2 * WIDTH,
        "max_position_embeddings": CONTEXT,
    }


ALTERNATING = ["sliding_attention", "full_attention"] * (LAYERS // 2)
NO_WINDOW = ["full_attention"] * LAYERS
TWO_ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    "full_attention": {"rope_type": "default", "rope_theta": 10_000.0},
}
ONE_ROPE = dict.fromkeys(TWO_ROPES, TWO_ROPES["full_attention"])
GRANITE = {"embedding_multiplier": 3.0, "attention_multiplier": 0.6, "residual_multiplier": 0.5, "logits_scaling": 2.0}
SPARSE = {"num_local_experts": 4, "num_experts_per_tok": 2, "router_jitter_noise": 0.0}

GPT2 = {
    "n_layer": LAYERS, "n_embd": WIDTH, "n_head": HEADS, "n_positions": CONTEXT, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": WIDTH}
MAMBA = {"num_hidden_layers": LAYERS, "hidden_size": WIDTH, "state_size": 8}
OWN_ATTENTION = f"{LAYERS} of its {LAYERS} layers do not do their attention through transformers"
RECURRENT = {"why_padded": "it has layers of type linear_attention", "gain": 2.0}  # a larger one multiplies rounding

FAMILIES = (
    Family("mistral", common() | {"sliding_window": WINDOW, "head_dim": 8}, {"sliding_window": None}),
    Family(
        "gemma2",
        common()
        | {
            "head_dim": 16, "sliding_window": WINDOW, "layer_types": ALTERNATING, "query_pre_attn_scalar": 4,
            "attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.0,
        },
        {
            "layer_types": NO_WINDOW, "query_pre_attn_scalar": 64, "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
        },
    ),
    Family(
        "gemma3_text",
        common()
        | {
            "head_dim": 16, "sliding_window": WINDOW, "layer_types": ALTERNATING, "query_pre_attn_scalar": 4,
            "rope_parameters": TWO_ROPES,
        },
        {"layer_types": NO_WINDOW, "query_pre_attn_scalar": 64, "rope_parameters": ONE_ROPE},
    ),
    Family("qwen2", common()),
    Family("qwen3", common() | {"head_dim": 16}),
    Family("mixtral", common() | SPARSE, {"num_experts_per_tok": 1}),
    Family("phi3", common() | {"sliding_window": WINDOW}, {"sliding_window": None}),
    Family(
        "opt",
        {
            "num_hidden_layers": LAYERS, "hidden_size": WIDTH, "num_attention_heads": HEADS, "ffn_dim": 2 * WIDTH,
            "word_embed_proj_dim": WIDTH, "max_position_embeddings": CONTEXT, "dropout": 0.0,
        },
    ),
    Family("gpt_neox", common(HEADS) | {"rotary_pct": 0.5}, {"rotary_pct": 1.0}),
    Family("olmo2", common()),
    Family("granite", common() | GRANITE, dict.fromkeys(GRANITE, 1.0)),
    Family("smollm3", common() | {"no_rope_layers": [1, 1, 1, 0]}, {"no_rope_layers": [1, 1, 1, 1]}),
    Family(
        "falcon",
        common() | {"new_decoder_architecture": True, "num_kv_heads": 2, "alibi": False},
        why_padded="its forward refuses packed rows",
    ),
    Family("gpt2", GPT2),
    Family(
        "gpt_oss",
        common() | SPARSE | {"head_dim": 16, "sliding_window": WINDOW, "layer_types": ALTERNATING},
        {"layer_types": NO_WINDOW},
    ),
    Family("bloom", {"n_layer": LAYERS, "hidden_size": WIDTH, "n_head": HEADS}, why_padded=OWN_ATTENTION),
    Family("gptj", GPT2 | {"rotary_dim": 4}, why_padded=OWN_ATTENTION),
    Family(
        "gpt_neo",
        {
            "num_layers": LAYERS, "hidden_size": WIDTH, "num_heads": HEADS, "max_position_embeddings": CONTEXT,
            "attention_types": [[["global", "local"], LAYERS // 2]], "window_size": WINDOW,
        },
        {"window_size": CONTEXT},
        OWN_ATTENTION,
    ),
    Family("mamba", MAMBA, **RECURRENT),
    Family(
        "qwen3_next",
        common() | EXPERTS
        | {
            "head_dim": 16, "shared_expert_intermediate_size": WIDTH, "linear_num_value_heads": 4,
            "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
        },
        **RECURRENT,
    ),
    Family(
        "jamba",
        common()
        | {
            "num_experts": 2, "mamba_d_state": 8, "attn_layer_period": 2, "attn_layer_offset": 1,
            "expert_layer_period": 2, "expert_layer_offset": 1, "use_mamba_kernels": False,
        },
        **RECURRENT,
    ),
)  # fmt: skip


OTHERS = (
    Family("llama", common()),
    Family("gemma", common() | {"head_dim": 16}),
    Family("cohere", common() | {"logit_scale": 0.5}, {"logit_scale": 1.0}),
    Family("cohere2", common() | {"logit_scale": 0.5, "sliding_window": WINDOW}, {"sliding_window": CONTEXT}),
    Family("stablelm", common() | {"partial_rotary_factor": 0.5}),
    Family("gpt_bigcode", GPT2 | {"multi_query": True}),
    Family("starcoder2", common() | {"sliding_window": WINDOW}, {"sliding_window": None}),
    Family("phi", common(HEADS) | {"partial_rotary_factor": 0.5}),
    Family("qwen2_moe", common() | EXPERTS | {"shared_expert_intermediate_size": WIDTH}),
    Family("qwen3_moe", common() | EXPERTS | {"head_dim": 16}),
    Family("granitemoe", common() | SPARSE),
    Family("olmo", common()),
    Family("olmo3", common() | {"sliding_window": WINDOW}, {"sliding_window": CONTEXT}),
    Family("glm", common() | {"head_dim": 16}),
    Family("ernie4_5", common() | {"head_dim": 16}),
    Family("helium", common() | {"head_dim": 8}),
    Family("nemotron", common()),
    Family("codegen", GPT2 | {"rotary_dim": 4}, why_padded=OWN_ATTENTION),
    Family(
        "mpt",
        {"n_layers": LAYERS, "d_model": WIDTH, "n_heads": HEADS, "max_seq_len": CONTEXT, "expansion_ratio": 2},
        why_padded="its forward refuses packed rows",
    ),
    Family(
        "mamba2", MAMBA | {"num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 16}, **RECURRENT
    ),
    Family("falcon_mamba", MAMBA, **RECURRENT),
    Family(
        "recurrent_gemma",
        common(1)
        | {"lru_width": WIDTH, "attention_window_size": WINDOW, "block_types": ["recurrent", "attention"]},
        {"attention_window_size": CONTEXT},
        **RECURRENT,
    ),
)  # fmt: skip


def three_families(layers: int) -> dict[str, dict[str, Any]]:
    """Settings of a tiny GPT-2 without dropout, a Llama and a Qwen3, both with grouped heads."""
    common = {"num_hidden_layers": layers, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48,
              "max_position_embeddings": 64}  # fmt: skip
    return {
        "gpt2": {"n_layer": layers, "n_embd": 32, "n_head": 4, "n_positions": 64, "resid_pdrop": 0.0,
                 "embd_pdrop": 0.0, "attn_pdrop": 0.0},
        "llama": common | {"num_key_value_heads": 2},
        "qwen3": common | {"num_key_value_heads": 1, "head_dim": 16},
    }  # fmt: skip


def by_speed(families: Sequence[Family]) -> list[Any]:
    """Parameters of a test: those of `make test` as they are, the others marked as slow."""
    return [
        pytest.param(family, id=family.name, marks=[] if family.name in QUICK else pytest.mark.slow)
        for family in families
    ]


def build(family: Family, tokenizer, head: str = "causal", seed: int = 0, **changes: Any):
    """A seeded fp32 model of the family in eval mode; `changes` replace some settings."""
    model = build_model(family.name, tokenizer, head, seed, **(dict(family.settings) | changes))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # larger matrices, but for a classifier's head and Mamba's decays: attention is not nearly uniform
            if parameter.ndim >= 2 and not name.startswith("score") and not name.endswith("A_log"):
                parameter.mul_(family.gain)
    return model.eval()


def alone(model, row: Sequence[int]) -> torch.Tensor:
    """Logits of one row by transformers' own forward and plain attention: [T, vocabulary], of a classifier [labels]."""
    before = model.config._attn_implementation
    model.config._attn_implementation = "eager"
    try:
        return model(input_ids=torch.tensor([list(row)])).logits[0]
    finally:
        model.config._attn_implementation = before


def random_rows(vocabulary: int, lengths: Sequence[int] = LENGTHS, seed: int = 0) -> list[list[int]]:
    """Rows of ids without the special ones."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(2, vocabulary, (length,), generator=generator).tolist() for length in lengths]
