"""benchmarks/generation.py forces where replies end, by a part of the generator that must be there."""

import numpy as np
import torch
from generation import NoText, ours, theirs
from transformers import AutoConfig, AutoModelForCausalLM

from lmgym.generation.local_generation import LocalGenerator


def test_both_make_the_same_tokens_of_the_lengths_that_are_asked_for() -> None:
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
    config = AutoConfig.for_model("llama", vocab_size=97, eos_token_id=None, num_key_value_heads=2, **sizes)
    model = AutoModelForCausalLM.from_config(config).eval()
    prompts, lengths = [[5, 6, 7], [8, 9, 10, 11, 12], [13]], np.array([2, 6, 4, 1, 3, 6])
    found = ours(LocalGenerator(model, NoText()), prompts, 2, lengths)
    assert [len(reply) for reply in found] == lengths.tolist()
    assert found == theirs(model, prompts, 2, lengths)
