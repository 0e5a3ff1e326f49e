"""Our sampler against transformers' generate, a full forward, and the exact distribution."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from tiny_generators import FAMILIES, PACKED, prompts_of
from transformers import AutoModelForCausalLM

from lmgym.errors import InputError
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Completion, Sampling
from lmgym.generation.steps import PackedSteps, static_step
from lmgym.models.loading import load_tokenizer
from lmgym.models.memory import cache_numbers_per_token
from lmgym.text import Conversation, Turn


def theirs(generator: LocalGenerator, prompts: list[list[int]], **settings) -> list[list[int]]:
    """transformers' generate, left-padded, each cut after its eos."""
    tokenizer = generator.tokenizer
    batch = tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
    found = generator.model.generate(
        **batch, do_sample=False, pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id, **settings
    )
    rows = found[:, batch.input_ids.shape[1] :].tolist()
    eos = tokenizer.eos_token_id
    return [row[: row.index(eos) + 1] if eos in row else row for row in rows]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_greedy_is_transformers_generate_token_for_token(family: str, penalty: float, generators) -> None:
    generator, prompts = generators[family], prompts_of(13)
    sampling = Sampling(max_new_tokens=24, temperature=0, repetition_penalty=penalty)
    ours = [list(c.ids) for [c] in generator.generate(prompts, 1, sampling)]
    assert ours == theirs(generator, prompts, max_new_tokens=24, repetition_penalty=penalty)
    assert len({tuple(ids) for ids in ours}) > 8, "prompts matter"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_a_full_forward(family: str, temperature: float, generators) -> None:
    generator, prompts = generators[family], prompts_of(5)
    sampling = Sampling(max_new_tokens=20, temperature=temperature, top_p=0.9, repetition_penalty=1.1)
    for prompt, replies in zip(prompts, generator.generate(prompts, 3, sampling), strict=True):
        for reply in replies:
            with torch.no_grad():
                logits = generator.model(torch.tensor([prompt + list(reply.ids)])).logits[0, len(prompt) - 1 : -1]
            wanted = (logits / temperature).log_softmax(-1).gather(1, torch.tensor(reply.ids)[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(reply.logprobs), wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_reply_does_not_depend_on_the_rest_of_the_request(family: str, generators) -> None:
    generator, prompts = generators[family], prompts_of(12)
    sampling = Sampling(max_new_tokens=12, temperature=0.9, top_k=50, top_p=0.95, seed=5)

    def ids(batch_rows: int, count: int, n: int = 2) -> list:
        generator.generation_batch_size = batch_rows
        return [[c.ids for c in replies] for replies in generator.generate(prompts[:count], n, sampling)]

    try:
        together = ids(64, 12)
        assert ids(7, 12) == together
        assert ids(1, 4) == together[:4]
        for batch_rows, count in ((64, 12), (7, 12), (1, 4)):  # a single reply shares a row with its prompt
            assert ids(batch_rows, count, 1) == [first[:1] for first in together[:count]]
    finally:
        generator.generation_batch_size = 64
    alone = generator.generate(prompts[9:10], 2, Sampling(**{**vars(sampling), "seed": 14}))
    assert [c.ids for c in alone[0]] == together[9]
    assert together[0][0] != together[0][1], "the replies to one prompt differ"


OPTIONS = [
    {"temperature": 1.0}, {"temperature": 0.6}, {"top_k": 5}, {"top_p": 0.7}, {"repetition_penalty": 1.8},
    {"temperature": 1.5, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.4},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS)
def test_sampled_frequencies_are_the_exact_distribution(options: dict, generators) -> None:
    from transformers import (
        LogitsProcessorList,
        RepetitionPenaltyLogitsProcessor,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    generator, prompt, count = generators["llama"], prompts_of(1, seed=3)[0] * 2, 20_000
    generator.generation_batch_size = count
    replies = generator.generate([prompt], count, Sampling(max_new_tokens=1, ends_at_eos=False, **options))[0]
    generator.generation_batch_size = 64
    found = np.bincount([c.ids[0] for c in replies], minlength=512)
    # theirs, in their order, as the independent implementation
    chain = [RepetitionPenaltyLogitsProcessor(options.get("repetition_penalty", 1.0))]
    chain += [TemperatureLogitsWarper(options.get("temperature", 1.0))]
    chain += [TopKLogitsWarper(options["top_k"])] if "top_k" in options else []
    chain += [TopPLogitsWarper(options["top_p"])] if "top_p" in options else []
    ids = torch.tensor([prompt])
    with torch.no_grad():
        logits = LogitsProcessorList(chain)(ids, generator.model(ids).logits[:, -1])
    wanted = logits.double().softmax(-1)[0].numpy()
    assert found[wanted == 0].sum() == 0
    large = wanted * count > 5
    observed, expected = found[large], wanted[large] * count
    rest = (found[~large].sum(), wanted[~large].sum() * count)
    if rest[1] > 5:
        observed, expected = np.append(observed, rest[0]), np.append(expected, rest[1])
    assert len(observed) > 2
    assert chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-3


def test_rows_end_at_eos_stop_or_length_without_changing_the_others(generators) -> None:
    generator = generators["gpt2"]
    prompts = prompts_of(40, seed=8)
    sampling = Sampling(max_new_tokens=30, stop=("e",), seed=1)
    bounded = [c for replies in generator.generate(prompts, 3, sampling) for c in replies]
    free = Sampling(max_new_tokens=30, seed=1, ends_at_eos=False)
    whole = [c for replies in generator.generate(prompts, 3, free) for c in replies]
    assert {c.finish_reason for c in bounded} >= {"stop", "length"} or {c.finish_reason for c in bounded} >= {"stop"}
    for short, long in zip(bounded, whole, strict=True):
        assert long.ids[: len(short.ids)] == short.ids, "rows that leave change no other"
        assert "e" not in short.text
        assert short.tokens == len(short.ids) == len(short.logprobs)
        if short.finish_reason == "length":
            assert len(short.ids) == 30


@pytest.mark.parametrize("stop", [("e",), ("qu", "in"), ()])
def test_checks_every_8_tokens_as_on_a_gpu_end_replies_where_checks_every_token_do(stop, generators) -> None:
    generator, prompts = generators["gpt2"], prompts_of(40, seed=9)
    sampling, eos, found = Sampling(max_new_tokens=30, stop=stop, seed=2), generator.eos, []
    try:
        for generator.check_every in (1, 8):
            generator.eos = [*eos, *range(20, 90)]  # so that either may come first
            found.append([c for replies in generator.generate(prompts, 3, sampling) for c in replies])
    finally:
        generator.check_every, generator.eos = 1, eos
    assert {c.finish_reason for c in found[0]} >= {"eos", *(["stop"] if stop else [])}
    for every, eighth in zip(*found, strict=True):
        assert (every.text, every.ids, every.finish_reason) == (eighth.text, eighth.ids, eighth.finish_reason)
        assert every.logprobs == pytest.approx(eighth.logprobs, abs=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_that_change_in_place_are_the_weights_that_sample(family: str, generators) -> None:
    generator, prompts = generators[family], prompts_of(6, seed=4)
    sampling = Sampling(max_new_tokens=12, temperature=0)
    before = [list(c.ids) for [c] in generator.generate(prompts, 1, sampling)]
    kept = {name: value.clone() for name, value in generator.model.state_dict().items()}
    try:
        with torch.no_grad():
            for parameter in generator.model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
        changed = [list(c.ids) for [c] in generator.generate(prompts, 1, sampling)]
        assert changed == theirs(generator, prompts, max_new_tokens=12)
        assert changed != before
    finally:
        generator.model.load_state_dict(kept)
    assert [list(c.ids) for [c] in generator.generate(prompts, 1, sampling)] == before


def test_an_eos_is_among_the_ids_and_not_in_the_text(generators) -> None:
    generator = generators["llama"]
    eos = generator.tokenizer.eos_token_id
    with torch.no_grad():
        before = generator.model.lm_head.weight[eos].clone()
        generator.model.lm_head.weight[eos] = generator.model.lm_head.weight.mean(0) * 0 + 0.3
    try:
        replies = [
            c for r in generator.generate(prompts_of(30), 4, Sampling(max_new_tokens=30, temperature=3.0)) for c in r
        ]
    finally:
        with torch.no_grad():
            generator.model.lm_head.weight[eos] = before
    ended = [c for c in replies if c.finish_reason == "eos"]
    assert ended
    for reply in ended:
        assert reply.ids[-1] == eos
        assert eos not in reply.ids[:-1]
        assert generator.tokenizer.eos_token not in reply.text


def test_conversations_are_rendered_by_the_template(generators) -> None:
    generator = generators["qwen3"]
    chats = [Conversation((Turn("user", "hello"),), "A friend."), Conversation((Turn("user", "bye"),))]
    calls: list[tuple[int, int]] = []
    replies = generator.reply(chats, 2, Sampling(max_new_tokens=5), progress=lambda *at: calls.append(at))
    assert [len(r) for r in replies] == [2, 2]
    assert all(isinstance(c, Completion) for r in replies for c in r)
    assert calls[0] == (1, 5)


@pytest.mark.parametrize(
    ("prompts", "n", "words"),
    [([[]], 1, "prompt 0 has no token"), ([[5]], 0, "n=0 replies"), ([[5], [5] * 250], 1, "prompt 1 has 250 tokens")],
)
def test_invalid_requests_are_refused(prompts: list, n: int, words: str, generators) -> None:
    with pytest.raises(InputError, match=words):
        generators["llama"].generate(prompts, n, Sampling(max_new_tokens=20))


@pytest.mark.parametrize(
    "settings",
    [{"max_new_tokens": 0}, {"temperature": -1}, {"temperature": math.nan}, {"top_k": -1}, {"top_p": 0}, {"top_p": 1.1},
     {"repetition_penalty": 0}, {"stop": ("",)}, {"stop": "x"}],
)  # fmt: skip
def test_settings_out_of_range_are_refused(settings: dict) -> None:
    with pytest.raises(InputError, match="needed"):
        Sampling(**settings)


@pytest.mark.parametrize("family", PACKED)
def test_the_next_turn_reuses_the_cache_of_the_one_before(family: str, generators) -> None:
    generator = generators[family]
    fresh = LocalGenerator(generator.model, generator.tokenizer)
    sampling, prompt, added = Sampling(max_new_tokens=8, temperature=0), prompts_of(1, seed=9)[0], 0
    for turn in range(4):
        before = generator.prefix.computed
        [replies] = generator.generate([prompt], 3, sampling)
        fresh.prefix.ids = []
        [expected] = fresh.generate([prompt], 3, sampling)
        assert [c.ids for c in replies] == [c.ids for c in expected]
        assert turn == 0 or generator.prefix.computed - before == added
        prompt = [*prompt, *replies[0].ids, *range(10, 15)]
        added = len(replies[0].ids) + 5


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("family", PACKED)
def test_a_step_of_constant_shapes_equals_the_plain_step(family: str, n: int, generators) -> None:
    decoder = generators[family].decoder
    prompts = prompts_of(12 // n, seed=2)
    one, other = (PackedSteps(decoder, 9) for _ in range(2))
    logits, _ = (steps.start(prompts, n) for steps in (one, other))
    other.caches[0].clear()
    tokens = logits.argmax(-1).repeat_interleave(n)
    for place in range(9):
        [expected] = one.advance([tokens])
        found = static_step(decoder, tokens, torch.tensor([place]), other.caches)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
        tokens = expected.topk(3).indices[torch.arange(12), torch.arange(12) % 3]
    assert expected.std(0).mean() > 0.05


def test_a_request_may_have_a_seed_for_each_prompt(generators) -> None:
    generator, prompts = generators["llama"], prompts_of(3)
    sampling = Sampling(max_new_tokens=6, seed=(7, 100, 3))
    together = generator.generate(prompts, 2, sampling)
    alone = [
        generator.generate([p], 2, replace(sampling, seed=s))[0] for p, s in zip(prompts, (7, 100, 3), strict=True)
    ]
    assert [[c.ids for c in replies] for replies in together] == [[c.ids for c in replies] for replies in alone]
    with pytest.raises(InputError, match="3 seeds for 2 prompts; needed: one, or one for each"):
        generator.generate(prompts[:2], 2, sampling)


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_renew_is_enough_after_weight_updates_that_torch_does_not_count(
    family: str, small_models: dict[str, Path]
) -> None:
    """As fused optimizers and DeepSpeed change them: torch's version counters stay as they are."""
    model = AutoModelForCausalLM.from_pretrained(small_models[family], dtype=torch.float32).eval()
    generator = LocalGenerator(model, load_tokenizer(str(small_models[family])))
    prompt, sampling = prompts_of(1)[0], Sampling(max_new_tokens=4)
    generator.generate([prompt], 1, sampling)
    for weight in model.parameters():
        weight.data += 0.5 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel()))
    generator.renew()
    [[found]] = generator.generate([prompt], 1, sampling)
    ids = torch.tensor([[*prompt, *found.ids]])
    with torch.no_grad():
        logprobs = torch.log_softmax(model(ids).logits[0, len(prompt) - 1 : -1], -1)
    expected = logprobs.gather(1, ids[0, len(prompt) :, None])[:, 0]
    torch.testing.assert_close(torch.tensor(found.logprobs), expected, atol=1e-4, rtol=0)


def test_batches_on_a_cpu_are_limited_by_their_keys_and_values(generators, started, monkeypatch) -> None:
    generator = LocalGenerator(generators["llama"].model, generators["llama"].tokenizer, generation_batch_size=8)
    prompts, sampling = [[5 + i] * (3 + 2 * i) for i in range(8)], Sampling(6, temperature=0, ends_at_eos=False)
    expected = generator.generate(prompts, 1, sampling)
    assert started == [(8, 1)]
    started.clear()
    a_token = 4 * cache_numbers_per_token(generator.model.config)
    monkeypatch.setattr("lmgym.generation.local_generation.CACHE_GIB", 50 * a_token / 2**30)
    found = generator.generate(prompts, 1, sampling)
    assert [[one.ids for one in ones] for ones in found] == [[one.ids for one in ones] for ones in expected]
    assert started == [(2, 1), (2, 1), (3, 1), (1, 1)], "of 17 + 6, 13 + 6, 9 + 6 and 3 + 6 tokens a row: 50 at most"


@pytest.mark.parametrize("family", ["llama", "gpt2", "mamba"])
def test_equal_prompts_are_read_once_and_each_gets_the_reply_that_it_gets_alone(
    family: str, generators, started, monkeypatch
) -> None:
    generator, few = generators[family], prompts_of(3, seed=4)
    order = [0, 1, 0, 2, 0, 1, 0, 1]
    prompts, seeds = [few[i] for i in order], tuple(range(20, 28))
    together = generator.generate(prompts, 1, Sampling(12, temperature=1.0, seed=seeds))
    assert started == [(1, 4), (1, 3), (1, 1)], "a batch has one number of replies to a prompt"
    for i, replies in enumerate(together):
        [alone] = generator.generate([prompts[i]], 1, Sampling(12, temperature=1.0, seed=seeds[i]))
        assert replies[0].ids == alone[0].ids
    started.clear()
    monkeypatch.setattr(generator, "generation_batch_size", 3)
    assert [one.ids for [one] in generator.generate(prompts, 1, Sampling(12, temperature=1.0, seed=seeds))] == [
        one.ids for [one] in together
    ]
    assert sum(prompts * n for prompts, n in started) == 8
    assert max(prompts * n for prompts, n in started) == 3
