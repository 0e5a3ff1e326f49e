"""Batches that start where replies of others have ended: their replies, and what is computed for them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_generators import prompts_of

from lmgym.generation.protocol import Sampling
from lmgym.generation.steps import PackedSteps, static_step
from lmgym.models.memory import cache_numbers_per_token


@pytest.mark.parametrize(("family", "n"), [("llama", 1), ("gpt2", 4), ("qwen3", 4), ("gemma2", 3)])
def test_waiting_prompts_start_where_replies_have_ended_and_change_none(
    family: str, n: int, generators, started, monkeypatch
) -> None:
    """Half of the vocabulary ends a reply of the first token or later, so that lengths differ widely."""
    generator, prompts, rows = generators[family], prompts_of(48 // n, seed=11), []

    def counted(steps, ids, advance=PackedSteps.advance):
        rows.append(sum(map(len, ids)))
        return advance(steps, ids)

    monkeypatch.setattr(PackedSteps, "advance", counted)
    monkeypatch.setattr(generator, "generation_batch_size", 12)
    monkeypatch.setattr(generator, "eos", [*range(5, 400, 12)])
    sampling = Sampling(60, temperature=1.0, seed=tuple(range(len(prompts))))
    together = generator.generate(prompts, n, sampling)
    assert len(started) > 4, "more often than four whole batches"
    assert max(rows) <= 12
    tokens = [len(one.ids) for ones in together for one in ones]
    assert max(tokens) > 4 * min(tokens)
    assert sum(rows) == sum(tokens) - len(tokens), "the first tokens come from the prompts"
    for prompt, seed, replies in zip(prompts, sampling.seed, together, strict=True):
        [alone] = generator.generate([prompt], n, replace(sampling, seed=(seed,)))
        assert [one.ids for one in replies] == [one.ids for one in alone]
        for one, other in zip(replies, alone, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_caches_of_batches_together_are_limited_too(generators, started, monkeypatch) -> None:
    generator, held = generators["llama"], []

    def noted(steps, ids, advance=PackedSteps.advance):
        held.append(steps.tokens)
        return advance(steps, ids)

    monkeypatch.setattr(PackedSteps, "advance", noted)
    monkeypatch.setattr(generator, "generation_batch_size", 8)
    monkeypatch.setattr(generator, "eos", [*range(5, 400, 12)])
    a_token = 4 * cache_numbers_per_token(generator.model.config)
    monkeypatch.setattr("lmgym.generation.local_generation.CACHE_GIB", 300 * a_token / 2**30)
    generator.generate(prompts_of(24, seed=12), 2, Sampling(30, seed=3))
    assert len(started) > 6
    assert 200 < max(held) <= 300


def test_more_replies_to_one_prompt_than_rows_start_as_rows_get_free(generators, started, monkeypatch) -> None:
    generator, [prompt] = generators["gpt2"], prompts_of(1, seed=13)
    monkeypatch.setattr(generator, "eos", [*range(5, 400, 12)])
    sampling = Sampling(40, seed=(4, 5, 6))
    expected = [[one.ids for one in generator.generate([prompt], 8, replace(sampling, seed=s))[0]] for s in (4, 5, 6)]
    started.clear()
    monkeypatch.setattr(generator, "generation_batch_size", 8)
    found = generator.generate([prompt] * 3, 8, sampling)
    assert [[one.ids for one in ones] for ones in found] == expected
    assert started[0] == (1, 8)
    assert len(started) > 3
    assert sum(prompts * n for prompts, n in started) == 24


def test_a_step_of_constant_shapes_over_two_batches_equals_the_plain_step(generators) -> None:
    """One batch started three tokens earlier, and some of its replies have ended, as when a graph is captured."""
    decoder, ended = generators["qwen3"].decoder, np.array([True, False, True, True, False, True])
    found = []
    for constant in (False, True):
        steps, rng = PackedSteps(decoder, 9), np.random.default_rng(0)
        steps.start(prompts_of(2, seed=3), 3)
        for _ in range(3):
            steps.advance([torch.from_numpy(rng.integers(5, 400, 6))])
        assert steps.drop(0, ended)
        steps.start(prompts_of(2, seed=4), 1)
        for cache in steps.caches:
            cache.clear()
        for at in range(4):
            ids = [torch.from_numpy(rng.integers(5, 400, rows)) for rows in (4, 2)]
            logits = (
                static_step(decoder, torch.cat(ids), torch.tensor([3 + at, at]), steps.caches)
                if constant
                else torch.cat(list(steps.advance(ids)))
            )
        found.append(logits)
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-5)
