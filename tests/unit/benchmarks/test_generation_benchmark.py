"""benchmarks/generation.py: equal tokens of forced lengths, prompts read once, each side at its quicker precision."""

import numpy as np
import pytest
import torch
from generation import NoText, compare, ours, theirs
from transformers import AutoConfig, AutoModelForCausalLM

from lmgym.generation.local_generation import LocalGenerator

PROMPTS, LENGTHS = [[5, 6, 7], [8, 9, 10, 11, 12], [13]], np.array([2, 6, 4, 1, 3, 6])


@pytest.fixture
def model():
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
    config = AutoConfig.for_model("llama", vocab_size=97, eos_token_id=None, num_key_value_heads=2, **sizes)
    return AutoModelForCausalLM.from_config(config).eval()


def test_both_make_the_same_tokens_of_the_lengths_that_are_asked_for(model) -> None:
    found = ours(LocalGenerator(model, NoText()), PROMPTS, 2, LENGTHS)
    assert [len(reply) for reply in found] == LENGTHS.tolist()
    assert found == theirs(model, PROMPTS, 2, LENGTHS)


def test_generate_reads_a_prompt_once_however_many_replies_it_has(model) -> None:
    read = []
    model.model.register_forward_pre_hook(
        lambda _, args, kwargs: read.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    theirs(model, PROMPTS, 2, LENGTHS)
    assert read == [(3, 4)] + [(6, 1)] * 6  # three prompts but for their last tokens, then a token a step


def test_each_side_counts_at_its_quicker_precision() -> None:
    seconds = {
        "transformers fp32": [5, 6, 9],
        "transformers bf16": [3, 4, 9],
        "ours fp32": [2, 2, 9],
        "ours bf16": [1, 3, 4],
    }
    found = compare(seconds)
    assert found["best"] == {"transformers": "transformers bf16", "ours": "ours fp32"}
    assert found["ratio"] == 4 / 2
