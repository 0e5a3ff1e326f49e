"""The start of the random walks knows the graph, and no more about short ways than the walks that it copies."""

from pathlib import Path

import pytest

from lmgym.environments.random_walks import draw_random_walks
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling
from lmgym.models.forward.policies import load_policy
from lmgym.models.loading import load_tokenizer
from lmgym.text import tokenize_texts

SAMPLES = 100  # from each of the 20 starts


@pytest.mark.parametrize("size", ["small_start", pytest.param("start", marks=pytest.mark.slow)])
def test_its_samples_are_as_long_as_the_walks_and_most_of_them_possible(
    size: str, request: pytest.FixtureRequest
) -> None:
    start: Path = request.getfixturevalue(size)
    known = draw_random_walks(1000)
    tokenizer = load_tokenizer(str(start))
    generator = LocalGenerator(load_policy(str(start), tokenizer), tokenizer, generation_batch_size=500)
    prompts = tokenize_texts(tokenizer, known.prompts)
    replies = [one for group in generator.generate(prompts, SAMPLES, Sampling(9, seed=3)) for one in group]
    starts = [prompt for prompt in known.prompts for _ in range(SAMPLES)]
    walks = [first + reply.text for first, reply in zip(starts, replies, strict=True)]
    assert 0.24 < known.optimality(walks).mean() < 0.38  # the walks themselves: .352
    # who arrives stops, and nobody else
    ended = [reply.finish_reason == "eos" for reply in replies]
    arrived = ["a" in walk[:9] for walk in walks]
    assert sum(e == a for e, a in zip(ended, arrived, strict=True)) >= 0.96 * len(walks)
