"""Chats as text and as token ids: one meaning whatever the format, one tokenisation however it is cut."""

import random
from pathlib import Path

import pytest
from chat_texts import FAMILIES, random_conversation, random_replies

from lmgym.data.truncation import tokenize_replies
from lmgym.errors import InputError
from lmgym.messages import from_messages, from_transcript
from lmgym.models.loading import load_tokenizer
from lmgym.templates import BOS_TEMPLATE, FLAT_TEMPLATE
from lmgym.text import (
    Conversation,
    Turn,
    common_prefix,
    ensure_template,
    messages,
    render,
    render_all,
    share_prefix,
    tokenize_texts,
)

CHAT = Conversation((Turn("user", "hello"), Turn("bot", "hi there"), Turn("user", "how are you?")))


def test_hh_flat_and_message_chats_are_the_same_conversation() -> None:
    hh = from_transcript("\n\nHuman: hello\n\nAssistant: hi there\n\nHuman: how are you?")
    flat = from_transcript("User: hello\nBot: hi there\nUser: how are you?\nBot:")
    rows = [("user", "hello"), ("assistant", "hi there"), ("user", "how are you?")]
    chat = from_messages([{"role": role, "content": text} for role, text in rows])
    assert hh == flat == chat == CHAT


def test_roles_may_be_called_human_and_bot_in_any_case() -> None:
    rows = [{"role": "Human", "content": "hello"}, {"role": "BOT", "content": "hi there"}]
    assert from_messages(rows).turns == CHAT.turns[:2]


def test_text_before_the_first_marker_is_the_persona_and_a_system_message_is_too() -> None:
    persona = "You are a pirate."
    expected = Conversation((Turn("user", "ahoy"),), persona)
    assert from_transcript(f"{persona}\n\nHuman: ahoy") == expected
    assert from_transcript(f"{persona}\nUser: ahoy") == expected
    assert (
        from_messages([{"role": "system", "content": persona}, {"role": "user", "content": "ahoy"}])
        == from_messages(messages(expected))
        == expected
    )


def test_text_without_markers_is_one_user_turn() -> None:
    assert from_transcript(" What is a User: Bot? ") == Conversation((Turn("user", "What is a User: Bot?"),))


def test_line_breaks_and_marker_words_within_a_turn_stay_in_it() -> None:
    hh = from_transcript("\n\nHuman: a\n\nb\nUser: quoted\n\nAssistant: Human: no marker")
    assert hh == Conversation((Turn("user", "a\n\nb\nUser: quoted"), Turn("bot", "Human: no marker")))


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ({"role": "robot", "content": "x"}, "has the role 'robot', which is not supported; needed: user, assistant"),
        ({"role": "tool", "content": "x"}, "is the result of a tool; needed: an assistant's message before it"),
        ({"role": "tool", "content": {"a": 1}}, "has the content an object with 1 field; needed: content of text"),
        ({"role": "user", "content": None}, "has no content; needed: content of text"),
        ({"content": "x"}, "has no role; needed: user, assistant, system or tool"),
        ({"role": ["x"] * 9, "content": "x"}, "has the role a list of 9 items"),
        ({"role": "user", "content": [{"type": "image"}]}, "has content of the type 'image', which no stage reads"),
        ({"role": "user", "content": 5}, "has the content 5; needed"),
        (
            {"role": "assistant", "content": "", "tool_calls": [{"id": "x" * 9000}]},
            "calls a tool by an object with 1 field; needed: an object with the function's name and arguments",
        ),
        ("hello" * 1000, r"is 'hello.*…' \(5,000 characters\); needed: an object with role and content"),
    ],
)
def test_an_invalid_message_is_named_with_its_place(row: object, found: str) -> None:
    with pytest.raises(ValueError, match=found) as caught:
        from_messages([{"role": "user", "content": "x"}, row])
    assert str(caught.value).startswith("message 2 ")
    assert len(str(caught.value)) < 200


def test_conversations_survive_a_round_trip_through_messages() -> None:
    rng = random.Random(1)
    for _ in range(50):
        conversation = random_conversation(rng)
        assert from_messages(messages(conversation)) == conversation


def test_the_flat_template_writes_user_and_bot_with_eos_and_a_generation_prompt(tokenizers) -> None:
    gpt2 = tokenizers["gpt2"]
    assert render(gpt2, CHAT) == "User: hello\nBot: hi there\nUser: how are you?\nBot:"
    assert render(gpt2, CHAT, "fine") == "User: hello\nBot: hi there\nUser: how are you?\nBot: fine" + gpt2.eos_token
    assert render(tokenizers["bert"], CHAT, "fine").endswith("\nBot: fine")  # an encoder has no eos
    assert render(gpt2, Conversation(CHAT.turns, "A pirate.")).startswith("A pirate.\nUser: hello\n")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_flat_templates_are_written_out_as_jinja_renders_them(family: str, tokenizers) -> None:
    rng, tokenizer = random.Random(family), tokenizers[family]
    chats = [random_conversation(rng) for _ in range(40)]
    chats += [Conversation(chat.turns[1:], chat.persona) for chat in chats if len(chat.turns) > 1]
    chats += [Conversation(chat.turns[:-1], chat.persona) for chat in chats if len(chat.turns) > 1]  # end with the bot
    chats += [Conversation((Turn("human", "{{ c }}"), Turn("assistant", "{% x %}"), Turn("user", "<|eos|>\n")))]
    replies = random_replies(rng, len(chats))
    assert tokenizer.chat_template in (FLAT_TEMPLATE, BOS_TEMPLATE)
    assert render_all(tokenizer, chats, replies) == [
        render(tokenizer, c, r) for c, r in zip(chats, replies, strict=True)
    ]
    assert render_all(tokenizer, chats) == [render(tokenizer, c) for c in chats]
    with pytest.raises(ValueError, match="argument 2 is"):
        render_all(tokenizer, chats, replies[1:])


def test_another_template_is_left_to_jinja(small_models) -> None:
    tokenizer = load_tokenizer(str(small_models["gpt2"]))
    tokenizer.chat_template = "{{ messages[-1].content }}{% if add_generation_prompt %}?{% endif %}"
    assert render_all(tokenizer, [CHAT], ["fine"]) == ["fine"]
    assert render_all(tokenizer, [CHAT]) == ["how are you??"]


def test_a_rendered_chat_reads_back_as_the_same_conversation(tokenizers) -> None:
    conversation = Conversation(CHAT.turns, "A pirate.")
    assert from_transcript(render(tokenizers["gpt2"], conversation)) == conversation


def test_a_tokenizers_own_chat_template_is_respected(small_models) -> None:
    tokenizer = load_tokenizer(str(small_models["gpt2"]))
    own = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
    tokenizer.chat_template = own
    ensure_template(tokenizer)
    assert tokenizer.chat_template == own
    assert render(tokenizer, CHAT) == "<user>hello<assistant>hi there<user>how are you?<a>"


def test_a_tokenizer_that_adds_a_bos_itself_gets_it_through_the_template_once(demo_texts) -> None:
    from tokenizers import processors

    from lmgym.models.small_models import train_tokenizer

    tokenizer = train_tokenizer(demo_texts[:50], 400)
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    tokenizer.chat_template = None
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.bos_token_id)]
    )
    ensure_template(tokenizer)
    ids = tokenize_texts(tokenizer, [render(tokenizer, CHAT, "fine")])[0]
    assert ids[0] == tokenizer.bos_token_id
    assert ids.count(tokenizer.bos_token_id) == 1


def test_only_encoders_get_their_special_tokens_from_the_tokenizer(tokenizers) -> None:
    bert = tokenizers["bert"]
    ids = tokenize_texts(bert, ["hello"])[0]
    assert (ids[0], ids[-1]) == (bert.cls_token_id, bert.sep_token_id)
    assert tokenize_texts(tokenizers["gpt2"], []) == []


def test_a_common_prefix_leaves_every_sequence_a_token_of_its_own() -> None:
    assert common_prefix([[1, 2, 3], [1, 2, 4]]) == 2
    assert common_prefix([[1, 2, 3], [1, 2, 3]]) == 2
    assert common_prefix([[1, 2], [1, 2, 3], [1, 9, 3]]) == 1
    assert common_prefix([[1], [1, 2]]) == 0
    assert common_prefix([[5, 6, 7]]) == 2
    shared = share_prefix([[1, 2, 3], [1, 2]], 4)
    assert (shared.prefix, shared.suffixes, shared.tokens, shared.dropped_turns) == ([1], [[2, 3], [2]], 4, 4)


@pytest.mark.parametrize("family", FAMILIES)
def test_sharing_a_prefix_never_changes_the_ids_of_a_text(family: str, tokenizers) -> None:
    rng, tokenizer = random.Random(family), tokenizers[family]
    conversations = [random_conversation(rng) for _ in range(40)]
    replies = [random_replies(rng, rng.randint(1, 4)) for _ in conversations]
    rows = tokenize_replies(tokenizer, conversations, replies, 10_000)
    for conversation, group, row in zip(conversations, replies, rows, strict=True):
        # what the tokenizer itself makes of the chat, through the one call that users know
        chats = [messages(conversation, reply) for reply in group]
        if family == "bert":
            expected = [tokenizer(tokenizer.apply_chat_template(c, tokenize=False)).input_ids for c in chats]
        else:
            expected = [tokenizer.apply_chat_template(c, return_dict=False) for c in chats]
        assert [row.prefix + suffix for suffix in row.suffixes] == expected
        assert not row.truncated
        assert all(row.suffixes)


def test_the_persona_is_seen_by_the_model_where_it_fits(tokenizers) -> None:
    for tokenizer in tokenizers.values():
        row = tokenize_replies(tokenizer, [Conversation(CHAT.turns, "A pirate.")], [["aye", "no"]], 256)[0]
        assert "A pirate." in tokenizer.decode(row.prefix)


def test_a_transcript_may_begin_with_its_first_marker():
    assert from_transcript("Human: hi\n\nAssistant: hello") == from_transcript("\n\nHuman: hi\n\nAssistant: hello")


def test_a_template_that_refuses_a_role_is_an_input_error(small_models: dict[str, Path]) -> None:
    tokenizer = load_tokenizer(str(small_models["gpt2"]))
    tokenizer.chat_template = (
        "{%- if messages[0].role == 'system' -%}{{ raise_exception('no system') }}{%- endif -%}"
        "{%- for message in messages -%}{{ message.content }}{%- endfor -%}"
    )
    turns = (Turn("user", "hello"),)
    assert render(tokenizer, Conversation(turns), "hi") == "hellohi"
    with pytest.raises(InputError, match=r"refuses a conversation of system, user, assistant: no system; needed"):
        render(tokenizer, Conversation(turns, "A friend."), "hi")
