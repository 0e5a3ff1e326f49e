"""States that sampling keeps: those that a forward over the whole rows computes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling
from lmgym.models.causal_rows import lay, run_layers
from lmgym.models.kept_states import KeptStates
from lmgym.models.loading import load_tokenizer

LAYER = 1


def generator_of(folder: Path, batch_rows: int = 64) -> LocalGenerator:
    """Weights so large that every token matters."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "head" not in name:
                parameter.mul_(4.0)
    return LocalGenerator(model, load_tokenizer(str(folder)), batch_rows)


def prompts_of(count: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(5, 400, rng.integers(1, 40)).tolist() for _ in range(count)]


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_they_are_those_of_the_rows_in_any_order(family: str, n: int, talkative_models: dict[str, Path]) -> None:
    generator, prompts = generator_of(talkative_models[family], batch_rows=9), prompts_of(10)
    expected = generator.generate(prompts, n, Sampling(20, seed=3))
    generator.keeps = kept = KeptStates(LAYER, 1e9)
    found = generator.generate(prompts, n, Sampling(20, seed=3))
    for some, others in zip(found, expected, strict=True):
        assert [reply.ids for reply in some] == [reply.ids for reply in others]
    assert len({len(reply.ids) for replies in found for reply in replies}) > 3, "rows leave while others go on"
    rows = [[*p, *reply.ids] for p, replies in zip(prompts, found, strict=True) for reply in replies][::-1]
    states = kept.of(rows)
    assert states is not None
    assert not states.is_inference()
    with torch.no_grad():
        wanted = run_layers(generator.family, lay(rows, [1] * len(rows)), None, 0, LAYER)
    assert wanted.std() > 0.01
    torch.testing.assert_close(states, wanted, rtol=1e-4, atol=1e-4)


def test_a_single_prompt_is_kept_too(talkative_models: dict[str, Path]) -> None:
    generator, [prompt] = generator_of(talkative_models["llama"]), prompts_of(1)
    generator.keeps = kept = KeptStates(LAYER, 1e9)
    [[reply]] = generator.generate([prompt], 1, Sampling(20, seed=3))
    states = kept.of([[*prompt, *reply.ids]])
    assert states is not None
    assert len(states) == len(prompt) + len(reply.ids) - 1


def test_rows_that_were_not_sampled_have_none_and_beyond_the_bound_nothing_is_kept(
    talkative_models: dict[str, Path],
) -> None:
    generator, prompts = generator_of(talkative_models["llama"], batch_rows=5), prompts_of(10)
    whole = KeptStates(LAYER, 1e9)
    generator.keeps = whole
    found = [reply for [reply] in generator.generate(prompts, 1, Sampling(20, seed=3))]
    rows = [[*prompt, *reply.ids] for prompt, reply in zip(prompts, found, strict=True)]
    assert whole.of(rows) is not None
    assert whole.of([*rows, rows[0][:-1]]) is None
    numbers = whole.numbers
    generator.keeps = part = KeptStates(LAYER, numbers - 1)  # room for the first of two batches
    generator.generate(prompts, 1, Sampling(20, seed=3))
    known = [part.of([row]) is not None for row in rows]
    assert sorted(known) == [False] * 5 + [True] * 5
    assert part.numbers < numbers
    whole.forget()
    assert whole.numbers == 0
    assert whole.of([rows[0]]) is None
