"""Log-probabilities of replies that share their prompt, against transformers' own forward of each one alone."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from families import FAMILIES, OTHERS, Family
from transformers import AutoModelForCausalLM

from lmgym.data.truncation import tokenize_apart
from lmgym.models.forward.policies import PolicyModel, load_policy
from lmgym.models.loading import load_tokenizer
from lmgym.text import Conversation, Replies, Turn, render

CHATS = [
    Conversation((Turn("user", "do you like tea?"),)),
    Conversation((Turn("user", "hi"), Turn("bot", "hello."), Turn("user", "tell me of beans")), "Mira is kind."),
    Conversation((Turn("user", "a"),)),
]
REPLIES = [("yes i do.", "no, and i never did like it much."), ("beans grow.", "beans."), ("i", "one reply alone")]


def rows_of(tokenizer) -> list[Replies]:
    rows = tokenize_apart(tokenizer, CHATS, [*REPLIES[:2], REPLIES[2][1:]], 200)
    assert all(isinstance(row, Replies) for row in rows)
    return rows  # type: ignore[return-value]


def alone(model, row: Replies, eos: int) -> list[torch.Tensor]:
    """Log-probabilities of each reply's tokens and its eos, one forward a reply."""
    found = []
    for suffix in row.suffixes:
        ids = torch.tensor([[*row.prefix, *suffix, eos]])
        logprobs = model(ids).logits[0, :-1].float().log_softmax(-1)
        found.append(logprobs.gather(1, ids[0, 1:, None])[-len(suffix) :, 0])
    return found


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
@pytest.mark.parametrize("packed", [None, False])
def test_replies_that_share_their_prompt_score_and_learn_as_each_alone(
    family: str, packed: bool | None, small_models: dict[str, Path]
) -> None:
    tokenizer = load_tokenizer(str(small_models[family]))
    policy = PolicyModel(load_policy(str(small_models[family]), tokenizer), packed).eval()
    assert policy.packed is (packed is None)
    rows = rows_of(tokenizer)
    inputs = policy.collate_replies(rows, tokenizer.eos_token_id)
    assert len(inputs["rows"].ids) == sum(row.tokens for row in rows)  # a prompt once
    found = policy(**inputs)
    plain = AutoModelForCausalLM.from_pretrained(small_models[family]).eval()
    plain.resize_token_embeddings(policy.causal.get_input_embeddings().num_embeddings, mean_resizing=False)
    plain.load_state_dict(policy.causal.state_dict())
    wanted = torch.cat([one for row in rows for one in alone(plain, row, tokenizer.eos_token_id)])
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    weights = torch.linspace(-1, 1, len(wanted))
    (found * weights).sum().backward()
    (wanted * weights).sum().backward()
    gradients = dict(policy.causal.named_parameters())
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(gradients[name].grad, parameter.grad, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("name", ["gemma2", "granite", "mistral", "bloom", "mamba"])
def test_so_they_do_in_families_with_scales_caps_and_windows_and_where_rows_are_padded(
    name: str, family_folder: Callable[[Family], Path], family_tokenizer
) -> None:
    [family] = [family for family in (*FAMILIES, *OTHERS) if family.name == name]
    folder = str(family_folder(family))
    policy = PolicyModel(load_policy(folder, load_tokenizer(folder))).eval()
    assert policy.packed is not bool(family.why_padded)
    rows = rows_of(family_tokenizer)
    found = policy(**policy.collate_replies(rows, family_tokenizer.eos_token_id))
    wanted = torch.cat([one for row in rows for one in alone(policy.causal, row, family_tokenizer.eos_token_id)])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_what_is_scored_is_the_reply_with_its_eos_behind_the_prompt_as_generation_sees_it(tokenizers: dict) -> None:
    tokenizer = tokenizers["llama"]
    for chat, texts, row in zip(CHATS, REPLIES, tokenize_apart(tokenizer, CHATS, REPLIES, 200), strict=True):
        assert isinstance(row, Replies)
        for text, suffix in zip(texts, row.suffixes, strict=True):
            prompt = [*row.prefix, suffix[0]]
            assert prompt == tokenizer(render(tokenizer, chat), add_special_tokens=False).input_ids
            whole = tokenizer.decode([*prompt, *suffix[1:], tokenizer.eos_token_id])
            assert whole == render(tokenizer, chat, text)


def test_what_is_too_long_loses_its_oldest_turns_and_a_reply_that_does_not_fit_is_refused(tokenizers: dict) -> None:
    tokenizer = tokenizers["llama"]
    turns = tuple(Turn(("user", "bot")[i % 2], f"turn number {i}") for i in range(21))
    for limit in range(36, 60):
        [row] = tokenize_apart(tokenizer, [Conversation(turns)], [("short.", "a longer reply of many words")], limit)
        assert isinstance(row, Replies)
        assert row.dropped_turns > 0
        assert len(row.prefix) + max(map(len, row.suffixes)) <= limit
    [long] = tokenize_apart(tokenizer, [Conversation(turns)], [("word " * 90, "a")], 40)
    assert str(long).startswith("the reply is too long")
    [fills] = tokenize_apart(tokenizer, [Conversation((Turn("user", "word " * 300),))], [("yes", "no")], 40)
    assert isinstance(fills, Replies)
    assert fills.shortened > 0
    [ended] = tokenize_apart(tokenizer, CHATS[:1], [("fine.", f"a{tokenizer.eos_token}b")], 40)
    assert str(ended).startswith(f"a reply that holds {tokenizer.eos_token}")
