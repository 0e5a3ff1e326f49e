"""Generators of tiny models of many families, for the tests of sampling."""

from pathlib import Path

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from lmgym.generation.local_generation import LocalGenerator
from lmgym.models.loading import load_tokenizer

PACKED = ("gpt2", "llama", "qwen3", "gemma2", "gpt_oss")
FAMILIES = (*PACKED, "bloom", "mamba")
SIZES = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "head_dim": 8,
}  # fmt: skip
# windows are shorter than most rows; caps and sinks are far from doing nothing
OTHERS = {
    "gemma2": SIZES | {
        "sliding_window": 12, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 9.0,
    },
    "gpt_oss": SIZES | {
        "num_local_experts": 4, "sliding_window": 12, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    },
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2},
}  # fmt: skip


def random_model(family: str, tokenizer):
    """Weights are large, so that the next token depends on every one before."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id,
                                  bos_token_id=None, eos_token_id=tokenizer.eos_token_id, **OTHERS[family])  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).eval()
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 or "sinks" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    # as every test here compares: soft caps and sinks are not in transformers' fused attention
    model.set_attn_implementation("eager")
    return model


def generators_of(small_models: dict[str, Path]) -> dict[str, LocalGenerator]:
    """A generator a family; the weights are large, so that the next token depends on every one before."""
    found = {}
    for family in FAMILIES:
        if family in OTHERS:
            tokenizer = load_tokenizer(str(small_models["llama"]))
            found[family] = LocalGenerator(random_model(family, tokenizer), tokenizer)
            continue
        model = AutoModelForCausalLM.from_pretrained(small_models[family], dtype=torch.float32).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.ndim == 2 and "head" not in name:
                    parameter.mul_(6.0)
        found[family] = LocalGenerator(model, load_tokenizer(str(small_models[family])))
    return found


def prompts_of(count: int, seed: int = 0, longest: int = 40) -> list[list[int]]:
    """Ragged prompts of random tokens."""
    rng = np.random.default_rng(seed)
    return [rng.integers(5, 400, rng.integers(1, longest)).tolist() for _ in range(count)]
