"""Tiny random decoders of many families, each with what is special to it active: windows, softcaps, scales.

Rows of `LONGEST` tokens exceed every window. Weights are large, so that a token far back, and each special feature,
changes the logits: `Family.special` names the settings whose removal must be seen.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lmgym.models.small_models import build_model

LAYERS, WIDTH, HEADS, CONTEXT, WINDOW, LONGEST = 4, 32, 4, 320, 12, 40
GAIN = 6.0  # weight matrices, drawn with a standard deviation of .02, are multiplied by it
PLAIN_ATTENTION = "eager"


@dataclass(frozen=True)
class Family:
    """A kind of decoder: the fields of its config beside the common ones, and what is to be seen of it."""

    name: str
    """`model_type` in transformers"""
    settings: Mapping[str, Any] = field(default_factory=dict)
    special: Mapping[str, Any] = field(default_factory=dict)
    """settings that change the logits if they are replaced by these values, one by one"""
    why_padded: str = ""
    """empty where rows run packed; else what the reason given at load must contain"""


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
GRANITE = {"embedding_multiplier": 3.0, "attention_multiplier": 0.6, "residual_multiplier": 0.5, "logits_scaling": 0.25}
SPARSE = {"num_local_experts": 4, "num_experts_per_tok": 2, "router_jitter_noise": 0.0}

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
    Family("gpt_neox", common(HEADS) | {"rotary_pct": 0.5}),
    Family("olmo2", common()),
    Family("granite", common() | GRANITE, dict.fromkeys(GRANITE, 1.0)),
    Family("smollm3", common() | {"no_rope_layers": [1, 1, 1, 0]}, {"no_rope_layers": [1, 1, 1, 1]}),
    Family("falcon", common() | {"new_decoder_architecture": True, "num_kv_heads": 2, "alibi": False}, why_padded=" "),
)  # fmt: skip


def build(family: Family, tokenizer, head: str = "causal", seed: int = 0, **changes: Any):
    """A seeded fp32 model of the family on its plain attention, in eval mode; `changes` replace some settings."""
    model = build_model(family.name, tokenizer, head, seed, **(dict(family.settings) | changes))
    enlarge(model)
    return model.eval()


def enlarge(model) -> None:
    """Larger weight matrices, but for a classifier's head: attention is not nearly uniform."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2 and not name.startswith("score"):
                parameter.mul_(GAIN)
