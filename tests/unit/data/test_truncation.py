"""Chats that are too long: whole turns are dropped, the oldest first, and the rest is rendered by the template."""

import json
import random
from dataclasses import replace

import pytest
from chat_kinds import DECODERS, KINDS, Kind, random_text
from chat_texts import (
    CHATML,
    FAMILIES,
    FORGETFUL,
    character_tokenizer,
    chat_of,
    random_conversation,
    random_replies,
)

import lmgym.data.tokenization as tokenization
import lmgym.data.truncation as truncation
from lmgym.data.truncation import (
    Truncated,
    describe_truncation,
    drop_first_tokens,
    start_at_turn,
    tokenize_replies,
    truncate,
)
from lmgym.text import Conversation, Turn, render, tokenize_texts
from sft.tokenization import tokenize_chats

# as SmolLM2's: the BOS is what begins every turn, and without a system message the template writes its own
SMOLLM2 = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}"
    "{% endif %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def ids_of(tokenizer, conversation: Conversation, reply: str | None) -> list[int]:
    return tokenize_texts(tokenizer, [render(tokenizer, conversation, reply)])[0]


def starts_of(conversation: Conversation) -> list[int]:
    """Turns that a truncated conversation may begin with, by hand: the user's, and the last."""
    last = len(conversation.turns) - 1
    return [i for i, turn in enumerate(conversation.turns) if turn.speaker == "user" or i == last]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("as_prompts", [False, True])
def test_truncation_keeps_the_longest_end_that_fits_and_renders_it_again(
    family: str,
    as_prompts: bool,
    tokenizers,
) -> None:
    rng, tokenizer = random.Random(family), tokenizers[family]
    conversations = [random_conversation(rng) for _ in range(40)]
    replies = None if as_prompts else [random_replies(rng, 2) for _ in conversations]
    endings = replies or [[None]] * len(conversations)
    seen = {"whole": 0, "turns": 0, "shortened": 0}
    for max_length in (30, 45, 60, 80):
        for conversation, group, found in zip(
            conversations, endings, truncate(tokenizer, conversations, replies, max_length), strict=True
        ):
            lengths = {
                first: max(
                    len(ids_of(tokenizer, replace(conversation, turns=conversation.turns[first:]), r)) for r in group
                )
                for first in starts_of(conversation)
            }
            expected = next((first for first, length in lengths.items() if length <= max_length), None)
            if isinstance(found, str):
                assert expected is None
                assert "too long" in found
                continue
            kept = found.conversation
            assert kept.persona == conversation.persona
            assert found.ids == [ids_of(tokenizer, kept, reply) for reply in group]
            assert max(map(len, found.ids)) <= max_length
            if expected is None:
                assert found.shortened > 0
                [turn] = kept.turns
                assert conversation.turns[-1].text.endswith(turn.text)
                assert found.dropped_turns == len(conversation.turns) - 1
            else:
                assert found.shortened == 0
                assert (found.dropped_turns, kept.turns) == (expected, conversation.turns[expected:])
            seen["shortened" if found.shortened else "turns" if found.dropped_turns else "whole"] += 1
    assert min(seen.values()) > 3


def test_a_truncated_chat_begins_as_the_template_begins_it_with_its_system_message() -> None:
    tokenizer = character_tokenizer(template=SMOLLM2, bos="<|im_start|>")
    turns = tuple(Turn("bot" if i % 2 else "user", f"line {i} about rivers") for i in range(9))
    for persona, head in (("", "Be kind."), ("A pirate.", "A pirate.")):
        whole = Conversation(turns, persona)
        size = len(ids_of(tokenizer, whole, "aye"))
        shortest = len(ids_of(tokenizer, replace(whole, turns=turns[-1:]), "aye"))
        for max_length in range(shortest, size, 7):
            [row] = tokenize_replies(tokenizer, [whole], [["aye"]], max_length)
            text = tokenizer.decode(row.prefix + row.suffixes[0])
            assert text.startswith(f"<|im_start|>system\n{head}<|im_end|>\n<|im_start|>user\nline ")
            assert text.endswith("about rivers<|im_end|>\n<|im_start|>assistant\naye<|im_end|>\n")
            assert row.dropped_turns > 0


def test_all_replies_to_a_conversation_lose_the_same_turns() -> None:
    tokenizer = character_tokenizer()
    chat = Conversation(tuple(Turn("bot" if i % 2 else "user", f"line {i}") for i in range(5)))
    [alone], [both] = (truncate(tokenizer, [chat], [group], 80) for group in (["ok"], ["ok", "o" * 30]))
    assert (alone.dropped_turns, both.dropped_turns) == (0, 2)
    assert [tokenizer.decode(ids) for ids in both.ids] == [
        "User: line 2\nBot: line 3\nUser: line 4\nBot: ok</s>",
        "User: line 2\nBot: line 3\nUser: line 4\nBot: " + "o" * 30 + "</s>",
    ]


def test_a_last_turn_that_alone_is_too_long_keeps_its_end_and_is_counted() -> None:
    tokenizer = character_tokenizer()
    chat = Conversation((Turn("user", "first"), Turn("bot", "yes"), Turn("user", "0123456789" * 3)), "P.")
    [found] = truncate(tokenizer, [chat], [["ok"]], 30)
    assert tokenizer.decode(found.ids[0]) == "P.\nUser: 890123456789\nBot: ok</s>"
    assert (found.dropped_turns, found.shortened) == (2, 18)
    assert describe_truncation(found.dropped_turns, found.shortened) == (
        "without the 2 oldest turns, the last turn without at least its first 18 tokens"
    )
    assert describe_truncation(0, 0) == ""


def test_a_reply_is_never_cut_unless_cut_replies_is_set() -> None:
    tokenizer = character_tokenizer()
    chat = Conversation((Turn("user", "hello"),))
    marks = len("User: \nBot: ") + 1  # and the eos
    fits, too_long = (truncate(tokenizer, [chat], [["x" * 20, "ok"]], n)[0] for n in (marks + 20, marks + 19))
    assert [tokenizer.decode(ids) for ids in fits.ids] == ["User: \nBot: " + "x" * 20 + "</s>", "User: \nBot: ok</s>"]
    assert too_long == (
        f"the reply is too long: {marks + 20} tokens with the template's marks and no other turn; "
        f"max_length={marks + 19}"
    )
    [cut] = truncate(tokenizer, [chat], [["0123456789"]], marks + 4, cut_replies=True)
    assert tokenizer.decode(cut.ids[0]) == "User: \nBot: 6789</s>"
    assert cut.shortened == len("hello") + 6


def test_a_system_message_that_leaves_no_room_is_reported() -> None:
    tokenizer, chat = character_tokenizer(), Conversation((Turn("user", "hello"),), "p" * 50)
    [as_prompt] = truncate(tokenizer, [chat], None, 40)
    assert as_prompt.startswith("the system message is too long: ")
    [scored] = truncate(tokenizer, [chat], [["ok"]], 40, cut_replies=True)
    assert scored.startswith("the system message is too long: ")


def test_a_row_that_the_template_refuses_does_not_fail_the_others() -> None:
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML
    tokenizer, turns = character_tokenizer(template=refuses), (Turn("user", "hi"),)
    good, bad = tokenize_replies(tokenizer, [Conversation(turns), Conversation(turns, "P.")], [["a"], ["b"]], 100)
    assert not isinstance(good, str)
    assert "refuses a conversation of system, user, assistant: no system" in bad
    rows, [rejection] = tokenize_chats([chat_of("hi", "a"), chat_of("hi", "b", persona="P.", line=9)], tokenizer, 100)
    assert len(rows) == 1
    assert (rejection.line, "no system" in rejection.found) == (9, True)


def test_dropping_first_tokens_drops_at_least_so_many() -> None:
    tokenizer = character_tokenizer()
    assert drop_first_tokens(tokenizer, "abcdef", 2) == "cdef"
    assert drop_first_tokens(tokenizer, "a bcdef", 1) == "bcdef", "no white space at its front"
    assert drop_first_tokens(tokenizer, "abc", 3) == drop_first_tokens(tokenizer, "abc", 99) == ""
    assert drop_first_tokens(tokenizer, "abc", 0) == "abc"


def test_a_conversation_begun_by_the_user_still_begins_with_the_user() -> None:
    chat = Conversation(tuple(Turn("bot" if i % 2 else "user", str(i)) for i in range(5)))
    assert [start_at_turn(chat, first)[1] for first in range(5)] == [0, 2, 2, 4, 4]
    greeted = Conversation((Turn("bot", "hello"), *chat.turns))
    assert [start_at_turn(greeted, first)[1] for first in range(6)] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("template", [None, CHATML, FORGETFUL])
def test_the_work_on_a_row_is_linear_in_its_turns(template: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = character_tokenizer(template=template)
    rendered = 0

    def counting(render_each):
        def count(tokenizer, conversations, replies=None):
            nonlocal rendered
            rendered += sum(len(conversation.turns) for conversation in conversations)
            return render_each(tokenizer, conversations, replies)

        return count

    import lmgym.text as text

    monkeypatch.setattr(text, "render_each", counting(text.render_each))
    monkeypatch.setattr(tokenization, "render_each", text.render_each)
    work = []
    for exchanges in (200, 400):
        rendered = 0
        chat = chat_of(*(f"{kind}{i}" for i in range(exchanges) for kind in ("u", "b")))
        rows, rejections = tokenize_chats([chat], tokenizer, 200)
        assert rejections == []
        taught = [target for row in rows for target in row.targets]
        assert taught.count(tokenizer.eos_token_id) == exchanges, "each output once"
        assert max(len(row.ids) for row in rows) <= 200
        work.append(rendered)
    assert work[1] < 2.5 * work[0]


def test_turns_are_searched_from_the_end_of_a_very_long_chat() -> None:
    tokenizer = character_tokenizer()
    chat = Conversation(tuple(Turn("bot" if i % 2 else "user", f"{i}") for i in range(401)))
    for max_length in (60, 300, 2000, 100_000):
        [found] = truncate(tokenizer, [chat], None, max_length)
        assert isinstance(found, Truncated)
        lengths = {
            first: len(ids_of(tokenizer, replace(chat, turns=chat.turns[first:]), None)) for first in range(0, 401, 2)
        }
        assert found.dropped_turns == next(first for first, length in lengths.items() if length <= max_length)


@pytest.mark.parametrize("kind", DECODERS, ids=str)
def test_a_very_long_text_is_cut_before_it_is_tokenised_and_what_is_read_is_the_same(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(0)
    text = " ".join(random_text(rng, kind).strip() for _ in range(400)) + " " * 3000 + "x\n\n and so on?"
    chats = [
        Conversation((Turn("user", text),)),
        Conversation((Turn("user", "hi"), Turn("bot", text), Turn("user", "and now?"))),
        Conversation((Turn("user", text), Turn("bot", "yes"), Turn("user", "and now?"))),
    ]
    read = [truncate(kind.tokenizer, [chat], [["so"]], 64)[0] for chat in chats]
    assert all(truncation._bounded(kind.tokenizer, chat, 64) != chat for chat in chats)
    monkeypatch.setattr(truncation, "CHARACTERS_A_TOKEN", len(text))
    whole = [truncate(kind.tokenizer, [chat], [["so"]], 64)[0] for chat in chats]
    assert [row.ids for row in read] == [row.ids for row in whole]
    assert [row.dropped_turns for row in read] == [row.dropped_turns for row in whole]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_text_that_fits_stays_as_it_is_however_few_tokens_it_has_for_its_characters(kind: Kind) -> None:
    unseen, accents = "\u4e00" * 3000, "e" + "\u0301" * 3000
    texts = ["short", unseen, accents, "a" + " " * 3000 + "b", "x" * 3000, f"{unseen} and\n{accents}\u200b" * 2]
    ends = truncation.ends_of(kind.tokenizer, texts, 64)
    for whole, end in zip(*(tokenize_texts(kind.tokenizer, some) for some in (texts, ends)), strict=True):
        assert end == whole if len(whole) <= 64 else len(end) > 128


def test_the_characters_that_are_tokenised_do_not_grow_with_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, work = character_tokenizer(), []

    def counting(tokenizer, texts: list[str]) -> list[list[int]]:
        work[-1] += sum(map(len, texts))
        return tokenize_texts(tokenizer, texts)

    monkeypatch.setattr(tokenization, "tokenize_texts", counting)
    monkeypatch.setattr(truncation, "tokenize_texts", counting)
    asked = Turn("user", "and so?")
    for length in (10_000, 1_000_000):
        for text in ("word " * (length // 5), "x" + " " * length + "y"):
            work.append(0)
            thought = json.dumps({"reasoning_content": text})
            for turns, persona in (
                ((Turn("user", text),), ""),
                ((asked, Turn("bot", text), asked) * 20, ""),
                ((asked, Turn("bot", "so", thought), asked), ""),
                ((asked,), text),
            ):
                truncate(tokenizer, [Conversation(turns, persona)], [["so"]], 64)
    assert work[2] <= work[0]
    assert work[3] <= work[1]
