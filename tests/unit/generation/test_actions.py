"""Actions: what can be told apart, and choices that follow the softmax, whatever else is in the batch."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from acting import TOKENIZER
from transformers import AutoModelForCausalLM

import lmgym.generation.actions
from lmgym.generation.actions import ActionPolicy, read_candidates
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Candidates, Sampling
from lmgym.models.loading import load_tokenizer
from lmgym.text import Conversation, Turn, render, tokenize_texts

CHAT = Conversation((Turn("user", "hello there, how are you?"),))
ACTIONS = ("fine", "fine thanks", "one two three")


def read(prompt: Conversation | str, actions, scores="sum", most: int = 16) -> Candidates | str:
    return read_candidates(TOKENIZER, [prompt], [actions], most, scores)[0]


@pytest.fixture(scope="module")
def policy(small_models: dict[str, Path]) -> LocalGenerator:
    """A tiny one with large weights, so that candidates differ."""
    model = AutoModelForCausalLM.from_pretrained(small_models["llama"], dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(5.0)
    return LocalGenerator(model, load_tokenizer(str(small_models["llama"])))


def test_a_candidate_is_what_the_template_writes_for_that_reply_and_its_eos() -> None:
    found = read(CHAT, ACTIONS)
    assert isinstance(found, Candidates)
    assert found.texts == ACTIONS
    [prompt] = tokenize_texts(TOKENIZER, [render(TOKENIZER, CHAT)])
    for text, ids in zip(ACTIONS, found.ids, strict=True):
        assert TOKENIZER.decode([*prompt, *ids]) == render(TOKENIZER, CHAT, text)
    [plain] = tokenize_texts(TOKENIZER, ["fine"])
    text = read("a plain text: ", ["fine", "two"])
    assert isinstance(text, Candidates)
    assert text.ids[0] == (*plain, TOKENIZER.eos_token_id)


def test_a_score_is_a_sum_or_divided_by_tokens_with_the_eos_or_by_words() -> None:
    divisors = {}
    for scores in ("sum", "token", "word"):
        found = read(CHAT, ACTIONS, scores)
        assert isinstance(found, Candidates)
        divisors[scores] = found.divisors
        lengths = tuple(map(len, found.ids))
    assert divisors == {"sum": (1.0, 1.0, 1.0), "token": lengths, "word": (1.0, 2.0, 3.0)}


@pytest.mark.parametrize(
    ("actions", "why"),
    [
        ((), "lists no actions; needed: the texts of all legal actions"),
        ("fine", "lists 'fine'; needed: the texts"),
        ((1, 2), "lists a list of 2 items; needed: the texts"),
        (("fine", ""), "lists '', an empty action; needed: text"),
        (("fine", "  "), "lists '  ', an empty action"),
        (("fine", "two", "fine"), "lists 'fine' and 'fine', whose tokens are equal; needed: each action once"),
        (("one two three four five six seven", "a"), r", of \d+ tokens with its end; needed: at most 6, or"),
        (("fine", f"fine{TOKENIZER.eos_token}a"), f"which holds {TOKENIZER.eos_token}, the end of a reply"),
    ],
)
def test_actions_that_cannot_be_chosen_from_are_refused_with_the_reason(actions, why: str) -> None:
    for prompt in (CHAT, "a plain text: "):
        found = read(prompt, actions, most=6)
        assert isinstance(found, str)
        assert re.search(why, found)


def test_actions_that_differ_only_in_what_the_tokenizer_cannot_write_are_equal(small_models: dict[str, Path]) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<unk>": 0, "<eos>": 1, "<pad>": 2, "hit": 3}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", pad_token="<pad>")
    [found] = read_candidates(tokenizer, ["hit"], [["hit", "stick", "double"]], 9)
    assert found == "lists 'stick' and 'double', whose tokens are equal; needed: each action once"


def test_one_action_may_begin_with_another(policy: LocalGenerator) -> None:
    [found] = read_candidates(policy.tokenizer, [CHAT], [["fine", "fine thanks"]], 16, "token")
    assert isinstance(found, Candidates)
    short, long = (ids[:-1] for ids in found.ids)
    assert long[: len(short)] == short
    [prompt] = tokenize_texts(policy.tokenizer, [render(policy.tokenizer, CHAT)])
    chosen = ActionPolicy(policy).choose([prompt] * 200, [found] * 200, Sampling(16, seed=tuple(range(200))))
    assert {one.text for [one] in chosen} == {"fine", "fine thanks"}


def prompts_of(policy: LocalGenerator, texts: list[str]) -> list[list[int]]:
    chats = [Conversation((Turn("user", text),)) for text in texts]
    return tokenize_texts(policy.tokenizer, [render(policy.tokenizer, chat) for chat in chats])


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_choices_are_as_frequent_as_their_probabilities_say(policy: LocalGenerator, temperature: float) -> None:
    times = 4000
    [own] = read_candidates(policy.tokenizer, [CHAT], [ACTIONS], 16, "token")
    assert isinstance(own, Candidates)
    [prompt] = prompts_of(policy, ["hello there"])
    sampling = Sampling(16, temperature=temperature, seed=tuple(range(times)))
    found = [one for [one] in ActionPolicy(policy).choose([prompt] * times, [own] * times, sampling)]
    shares = {}
    for number, text in enumerate(ACTIONS):
        chosen = [one for one in found if one.text == text]
        shares[text] = len(chosen) / times
        assert {one.ids for one in chosen} == {own.ids[number]}
        assert {one.choice.chosen for one in chosen if one.choice} == {number}
        [logprob] = {one.logprobs for one in chosen}
        assert shares[text] == pytest.approx(np.exp(logprob[0]), abs=4 * 0.5 / times**0.5)
    probabilities = [np.exp(next(one for one in found if one.text == text).logprobs[0]) for text in ACTIONS]
    assert sum(probabilities) == pytest.approx(1, abs=1e-6)
    assert max(probabilities) - min(probabilities) > 0.02, "or a uniform policy would pass"
    entropy = -sum(p * np.log(p) for p in probabilities)
    [own_entropy] = {one.choice.entropy for one in found if one.choice}
    assert own_entropy == pytest.approx(entropy, abs=1e-5)


def test_the_rest_of_a_batch_changes_nothing_nor_do_batches(policy: LocalGenerator, monkeypatch) -> None:
    prompts = prompts_of(policy, ["hello", "hello there, how are you?", "fine", "one two three"])
    listed = [ACTIONS, ["one", "two"], ACTIONS[:1], [*ACTIONS, "four five six"]]
    read = read_candidates(policy.tokenizer, [CHAT] * 4, listed, 16, "token")
    candidates = [one for one in read if isinstance(one, Candidates)]

    def choose(rows: list[int]) -> list:
        sampling = Sampling(16, seed=tuple(50 + i for i in rows))
        return ActionPolicy(policy, "token").choose([prompts[i] for i in rows], [candidates[i] for i in rows], sampling)

    together = choose([0, 1, 2, 3])
    for tokens in (8192, 1):
        monkeypatch.setattr(lmgym.generation.actions, "TOKENS_AT_ONCE", tokens)
        for rows in ([3, 1], [2], [0, 0, 1, 2, 3, 3]):
            for i, [found] in zip(rows, choose(rows), strict=True):
                [known] = together[i]
                assert (found.text, found.ids) == (known.text, known.ids)
                assert found.logprobs == pytest.approx(known.logprobs, abs=1e-5)


def test_equal_requests_are_computed_once(policy: LocalGenerator, monkeypatch) -> None:
    [prompt] = prompts_of(policy, ["hello"])
    [own] = read_candidates(policy.tokenizer, [CHAT], [ACTIONS], 16, "token")
    assert isinstance(own, Candidates)
    tokens = []
    hidden = type(policy.decoder).hidden
    monkeypatch.setattr(
        type(policy.decoder), "hidden", lambda self, rows: tokens.append(len(rows.ids)) or hidden(self, rows)
    )
    ActionPolicy(policy).choose([prompt] * 7, [own] * 7, Sampling(16, seed=0))
    assert tokens == [len(prompt) - 1 + sum(map(len, own.ids))]


def test_a_temperature_of_0_takes_the_likeliest_and_penalties_of_text_change_nothing(policy: LocalGenerator) -> None:
    [prompt] = prompts_of(policy, ["hello"])
    [own] = read_candidates(policy.tokenizer, [CHAT], [ACTIONS], 16, "token")
    assert isinstance(own, Candidates)
    chooser = ActionPolicy(policy)
    many = [one for [one] in chooser.choose([prompt] * 60, [own] * 60, Sampling(16, seed=0))]
    likeliest = max(many, key=lambda one: one.logprobs[0])
    [[greedy]] = chooser.choose([prompt], [own], Sampling(16, temperature=0.0))
    assert (greedy.text, greedy.logprobs) == (likeliest.text, pytest.approx(likeliest.logprobs))
    odd = Sampling(16, top_k=1, top_p=0.1, repetition_penalty=2.0, seed=0)
    assert chooser.choose([prompt] * 60, [own] * 60, odd) == [[one] for one in many]
