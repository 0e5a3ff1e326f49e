"""Rows as conversations: which forms are read, which turns are outputs, and what is refused, by field and finding."""

from typing import Any

import pytest

from lmgym.data.records import Record
from lmgym.errors import InputError
from lmgym.text import Conversation, Turn
from sft.conversations import validate_chats, validate_chosen, validate_distillation_rows


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def bot(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def records(*rows: dict[str, Any]) -> list[Record]:
    return [Record("file.jsonl", number, fields) for number, fields in enumerate(rows, 1)]


def one(validate, fields: dict[str, Any]):
    [chat], rejections = validate(records(fields))
    assert rejections == []
    return chat


HELLO = Conversation((Turn("user", "Hello"), Turn("bot", "Hi"), Turn("user", "Who?"), Turn("bot", "Me")), "A friend.")
SYSTEM = {"role": "system", "content": "A friend."}
TRANSCRIPT = "A friend.\nUser: Hello\nBot: Hi\nUser: Who?\nBot:"


@pytest.mark.parametrize(
    ("fields", "outputs"),
    [
        ({"messages": [SYSTEM, user("Hello"), bot("Hi"), user("Who?"), bot("Me")]}, (1, 3)),
        ({"text": TRANSCRIPT + " Me"}, (1, 3)),
        ({"input_text": TRANSCRIPT, "output_text": " Me "}, (3,)),
        ({"prompt": TRANSCRIPT, "completion": "Me"}, (3,)),
        (
            {"prompt": [SYSTEM, user("Hello")],
             "completion": [bot("Hi"), user("Who?"), bot("Me")]},
            (1, 3),
        ),
    ],
)  # fmt: skip
def test_every_form_is_read_as_the_same_conversation(fields: dict[str, Any], outputs: tuple[int, ...]) -> None:
    chat = one(validate_chats, fields)
    assert chat.conversation == HELLO
    assert chat.outputs == outputs
    assert chat.prompt == Conversation(HELLO.turns[:3], HELLO.persona)


def test_a_greeting_answers_nothing_and_is_context_and_turns_after_the_last_output_are_not_run() -> None:
    chat = one(validate_chats, {"messages": [bot("Welcome"), user("Hello"), bot("Hi"), user("Bye")]})
    assert [turn.text for turn in chat.conversation.turns] == ["Welcome", "Hello", "Hi"]
    assert chat.outputs == (2,)


@pytest.mark.parametrize(
    ("fields", "field", "found"),
    [
        ({"messages": [user("a"), bot("b"), bot("c")]}, "messages", "two turns of the bot in a row, turns 2 and 3"),
        ({"text": "User: a\nBot: b\nBot: c"}, "text", "two turns of the bot in a row"),
        ({"prompt": "User: a\nBot: b", "completion": "c"}, "completion", "two turns of the bot in a row"),
        ({"messages": [user("a"), bot("  ")]}, "messages", "an empty output, turn 2"),
        ({"messages": [user("a"), bot(""), user("b"), bot("c")]}, "messages", "an empty output, turn 2"),
        ({"input_text": "User: a\nBot:", "output_text": ""}, "output_text", "empty"),
        ({"input_text": "User: a\nBot:", "output_text": "   "}, "output_text", "an empty output"),
        ({"prompt": "a", "completion": None}, "completion", "null"),
        ({"prompt": "a"}, "completion", "missing"),
        ({"messages": []}, "messages", "empty"),
        ({"messages": [user("a")]}, "messages", "no turn of the bot that answers something"),
        ({"messages": [bot("a")]}, "messages", "no turn of the bot that answers something"),
        ({"messages": [{"role": "tool", "content": "x"}, bot("a")]}, "messages", "1 is the result of a tool"),
        ({"messages": 3}, "messages", "3; needed: text or messages"),
        ({"prompt": [user("a")], "completion": [SYSTEM, bot("y")]}, "completion", "a system message"),
        ({"answer": "a"}, "(row)", "none of messages, prompt, input_text, text"),
        ({"question": "a"}, "completion", "missing"),
        ({"prompt": "a", "reply": ""}, "reply", "empty"),
    ],
)
def test_a_row_that_cannot_be_used_is_named_with_field_and_finding(fields, field: str, found: str) -> None:
    good = {"messages": [user("a"), bot("b")]}
    chats, [rejection] = validate_chats(records(good, fields))
    assert len(chats) == 1
    assert (rejection.file, rejection.line, rejection.field) == ("file.jsonl", 2, field)
    assert found in rejection.found


def test_a_file_without_any_known_form_is_refused_with_its_columns() -> None:
    with pytest.raises(InputError, match=r"found the columns answer, topic; needed: messages; or prompt and compl"):
        validate_chats(records({"topic": "a", "answer": "b"}))
    with pytest.raises(InputError, match="found 0 rows"):
        validate_chats([])
    with pytest.raises(InputError, match="tokens and logprobs beside messages"):
        validate_distillation_rows(records({"messages": [user("a"), bot("b")]}))


TAUGHT = {"prompt": "User: a\nBot:", "tokens": [4, 5, 6], "logprobs": [-0.5, 0.0, -2.0]}


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "User: a\nBot:"},
        {"input_text": "User: a\nBot:", "output_text": "x"},
        {"messages": [user("a"), bot("x")]},
        {"messages": [user("a")]},
        {"text": "User: a\nBot: x"},
    ],
)
def test_a_teachers_tokens_take_the_place_of_the_output_in_every_form(fields: dict[str, Any]) -> None:
    chat = one(validate_distillation_rows, {**fields, "tokens": [4, 5, 6], "logprobs": [-0.5, 0.00001, -2.0]})
    assert chat.conversation == chat.prompt == Conversation((Turn("user", "a"),))
    assert chat.outputs == ()
    assert (chat.tokens, chat.logprobs) == ((4, 5, 6), (-0.5, 0.0, -2.0))


@pytest.mark.parametrize(
    ("changes", "field", "found"),
    [
        ({"logprobs": [-0.5, 0.0]}, "logprobs", "2 log-probabilities for 3 tokens; needed: one a token"),
        ({"tokens": []}, "tokens", "an empty output"),
        ({"tokens": None}, "tokens", "null"),
        ({"logprobs": "x"}, "logprobs", "'x'; needed: a list"),
        ({"tokens": [4, "5", 6]}, "tokens", "'5'; needed: ids of the tokenizer"),
        ({"tokens": [4, -1, 6]}, "tokens", "-1"),
        ({"logprobs": [-0.5, 0.3, -2.0]}, "logprobs", "0.3; needed: logarithms of probabilities"),
        ({"logprobs": [-0.5, float("nan"), -2.0]}, "logprobs", "nan"),
        ({"logprobs": [-0.5, None, -2.0]}, "logprobs", "None"),
        ({"prompt": None}, "prompt", "missing; needed: what the tokens answer"),
        ({"prompt": "User: a\nBot: b"}, "prompt", "two turns of the bot in a row"),
    ],
)
def test_a_teachers_row_that_cannot_be_used_is_named(changes: dict[str, Any], field: str, found: str) -> None:
    chats, [rejection] = validate_distillation_rows(records(TAUGHT, {**TAUGHT, **changes}))
    assert len(chats) == 1
    assert (rejection.line, rejection.field) == (2, field)
    assert found in rejection.found


def test_of_a_pair_the_chosen_reply_is_learned_and_each_once() -> None:
    pairs = [
        {"prompt": "User: a\nBot: b\nUser: c\nBot:", "chosen": "good", "rejected": "bad"},
        {"chosen": "\n\nHuman: a\n\nAssistant: good", "rejected": "\n\nHuman: a\n\nAssistant: bad"},
        {"prompt": "User: a\nBot: b\nUser: c\nBot:", "chosen": "good", "rejected": "worse"},
        {"prompt": "User: a", "chosen": "x", "rejected": "x"},
    ]
    chats, rejections = validate_chosen(records(*pairs))
    assert [chat.conversation.turns[-1] for chat in chats] == [Turn("bot", "good")] * 2
    assert [chat.outputs for chat in chats] == [(3,), (1,)]
    assert [(r.line, r.field) for r in rejections] == [(3, "chosen"), (4, "rejected")]
