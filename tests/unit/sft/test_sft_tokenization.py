"""Rows of ids: what carries loss, where pieces meet, what is cut, and what a template may do."""

import math
from dataclasses import replace

import pytest
from chat_texts import CHATML, FORGETFUL, character_tokenizer, chat_of

from lmgym.data.rejections import EARLIER, UNFIT
from lmgym.models.loading import load_tokenizer
from lmgym.templates import FLAT_TEMPLATE
from lmgym.text import Conversation, Turn, render, tokenize_texts
from sft.conversations import TrainingChat
from sft.report import marked
from sft.tokenization import Example, tokenize_chats

# its prompt is no beginning of prompt and reply
CONTRARY = "{%- if add_generation_prompt -%}{{ 'A:' }}{%- else -%}{{ messages[-1].content }}{%- endif -%}"


def only(chat: TrainingChat, tokenizer, max_length: int = 1000) -> Example:
    [example], rejections = tokenize_chats([chat], tokenizer, max_length)
    assert rejections == []
    return example


def test_loss_lies_on_the_bots_words_and_the_eos_behind_each_of_its_turns() -> None:
    tokenizer = character_tokenizer()
    example = only(chat_of("hi", "yo", "who", "me", persona="P."), tokenizer)
    assert tokenizer.decode(example.ids) == "P.\nUser: hi\nBot: yo\nUser: who\nBot: me"
    assert marked(example, tokenizer) == "P.\nUser: hi\nBot:[ yo</s>]\nUser: who\nBot:[ me</s>]"
    assert tokenizer.decode(example.targets) == " yo</s> me</s>"
    # each target is the token behind its place, but for an eos, which the flat template writes at the very end alone
    behind = [example.ids[p + 1] if p + 1 < len(example.ids) else None for p in example.places]
    eos = tokenizer.eos_token_id
    assert [b == t for b, t in zip(behind, example.targets, strict=True)] == [t != eos for t in example.targets]
    assert example.origin == "chats.jsonl:7"


def test_only_the_outputs_named_carry_loss() -> None:
    tokenizer = character_tokenizer()
    example = only(chat_of("hi", "yo", "who", "me", outputs=(3,)), tokenizer)
    assert marked(example, tokenizer) == "User: hi\nBot: yo\nUser: who\nBot:[ me</s>]"


def test_a_token_that_would_straddle_the_border_is_two_and_each_output_a_row_behind_its_own_prompt() -> None:
    tokenizer = character_tokenizer(merges=[(":", " "), (": ", "y"), ("o", "\n")])
    text = "User: hi\nBot: yo\nUser: a\nBot: b"
    whole = [tokenizer.decode([i]) for i in tokenize_texts(tokenizer, [text])[0]]
    assert ": y" in whole  # prompt and output in one token,
    assert "o\n" in whole  # and output and what follows
    rows, rejections = tokenize_chats([chat_of("hi", "yo", "a", "b")], tokenizer, 100)
    assert rejections == []
    prompts = ["User: hi\nBot:", "User: hi\nBot: yo\nUser: a\nBot:"]
    for row, prompt, reply in zip(rows, prompts, (" yo</s>", " b</s>"), strict=True):
        assert row.ids[: row.places[0] + 1] == tokenize_texts(tokenizer, [prompt])[0]
        assert tokenizer.decode(row.targets) == reply
        assert tokenizer.decode([row.targets[0]]) == " "
        assert row.replies.realigned


def test_a_prompt_is_tokenised_as_it_will_be_when_the_model_talks(small_models) -> None:
    tokenizer = load_tokenizer(str(small_models["llama"]))
    chat = chat_of("what about tea?", "i like tea.", persona="Mira likes tea.")
    example = only(chat, tokenizer)
    prompt = tokenize_texts(tokenizer, [render(tokenizer, chat.prompt)])[0]
    assert example.ids[: example.places[0] + 1] == prompt


def test_a_template_that_ends_turns_with_eos_shows_it_and_targets_it() -> None:
    tokenizer = character_tokenizer(template=CHATML)
    example = only(chat_of("hi", "yo", "who", "me"), tokenizer)
    text = "<user>hi</s>\n<assistant>[yo</s>]\n<user>who</s>\n<assistant>[me</s>]"
    assert marked(example, tokenizer) == text
    assert tokenizer.decode(example.ids) == text.replace("[", "").replace("]", "").removesuffix("</s>")


def test_where_a_template_rewrites_what_came_before_each_output_is_a_row_of_its_own() -> None:
    tokenizer = character_tokenizer(template=FORGETFUL)
    rows, rejections = tokenize_chats([chat_of("hi", "yo", "who", "me")], tokenizer, 1000)
    assert rejections == []
    assert [marked(row, tokenizer) for row in rows] == [
        "hi Bot:[ (thinks) yo</s>]",
        "hi Bot: yo</s>who Bot:[ (thinks) me</s>]",
    ]


def test_a_template_whose_prompt_does_not_begin_its_replies_rejects_the_row() -> None:
    rows, [rejection] = tokenize_chats([chat_of("hi", "yo")], character_tokenizer(template=CONTRARY), 1000)
    assert rows == []
    assert (rejection.file, rejection.line, rejection.field) == ("data/chats.jsonl", 7, "messages")
    assert "template" in rejection.found


def test_an_output_that_holds_the_eos_token_is_rejected_rather_than_cut() -> None:
    rows, [rejection] = tokenize_chats([chat_of("hi", "yo</s>me"), chat_of("a", "b")], character_tokenizer(), 1000)
    assert len(rows) == 1
    assert rejection.found == "a reply that holds </s>, which ends a reply; needed: text without it"


def test_a_long_prompt_keeps_its_end_and_the_output_stays_whole() -> None:
    tokenizer = character_tokenizer()
    example = only(chat_of("x" * 50, "yes"), tokenizer, max_length=24)
    # as a whole text, with an eos behind it, it has 24 tokens
    assert marked(example, tokenizer) == "User: " + "x" * 8 + "\nBot:[ yes</s>]"
    assert (example.replies.dropped_turns, example.replies.shortened) == (0, 42)


def test_a_bos_stays_in_front_of_what_is_left() -> None:
    tokenizer = character_tokenizer(template="{{ bos_token }}" + FLAT_TEMPLATE, bos="<s>")
    example = only(chat_of("x" * 50, "yes"), tokenizer, max_length=24)
    assert marked(example, tokenizer) == "<s>User: " + "x" * 7 + "\nBot:[ yes</s>]"


@pytest.mark.parametrize(("max_length", "fits"), [(20, True), (19, False)])
def test_an_output_that_fills_the_context_is_rejected_with_its_length(max_length: int, fits: bool) -> None:
    # "User: \nBot: 1234567</s>" are 20 tokens
    tokenizer = character_tokenizer()
    rows, rejections = tokenize_chats([chat_of("hi", "1234567"), chat_of("a", "b")], tokenizer, max_length)
    assert len(rows) == 1 + fits
    if fits:
        assert marked(rows[0], tokenizer) == "User: \nBot:[ 1234567</s>]"
    else:
        assert (rejections[0].line, rejections[0].field) == (7, "messages")
        assert rejections[0].found.startswith("the reply is too long: 20 tokens")


def test_a_conversation_longer_than_a_row_becomes_rows_in_which_each_output_stands_whole_once() -> None:
    tokenizer = character_tokenizer()
    words = [f"{kind}{i}" * 3 for i in range(6) for kind in ("u", "b")]
    rows, rejections = tokenize_chats([chat_of(*words)], tokenizer, 60)
    assert rejections == []
    assert [marked(row, tokenizer) for row in rows] == [
        "User: u4u4u4\nBot:[ b4b4b4</s>]\nUser: u5u5u5\nBot:[ b5b5b5</s>]",
        "User: u2u2u2\nBot:[ b2b2b2</s>]\nUser: u3u3u3\nBot:[ b3b3b3</s>]",
        "User: u0u0u0\nBot:[ b0b0b0</s>]\nUser: u1u1u1\nBot:[ b1b1b1</s>]",
    ]
    assert [row.replies.dropped_turns for row in rows] == [8, 4, 0]


def test_a_row_of_a_long_conversation_has_its_system_message_too() -> None:
    tokenizer = character_tokenizer()
    rows, _ = tokenize_chats([chat_of("u0", "b0", "u1", "b1", persona="Be kind.")], tokenizer, 30)
    assert [marked(row, tokenizer) for row in rows] == [
        "Be kind.\nUser: u1\nBot:[ b1</s>]",
        "Be kind.\nUser: u0\nBot:[ b0</s>]",
    ]


def test_each_output_is_in_one_row_whatever_the_length_and_the_template() -> None:
    for template in (None, CHATML, FORGETFUL):
        tokenizer = character_tokenizer(template=template)
        chat = chat_of(*(f"{kind}{i}" * (1 + i % 3) for i in range(9) for kind in ("u", "b")), persona="P.")
        outputs = [turn.text for turn in chat.conversation.turns[1::2]]
        for max_length in range(50, 260, 11):
            rows, rejections = tokenize_chats([chat], tokenizer, max_length)
            assert rejections == []
            assert max(len(row.ids) for row in rows) <= max_length
            # the rows of a long conversation come from its end on
            texts = [t for row in rows for t in reversed(tokenizer.decode(row.targets).split("</s>")[:-1])]
            texts = texts if template != FORGETFUL else [text.removeprefix(" (thinks)") for text in texts]
            in_order = texts if template == FORGETFUL else texts[::-1]
            assert [text.strip() for text in in_order] == outputs


def test_a_teachers_prompt_loses_its_oldest_turns() -> None:
    tokenizer = character_tokenizer()
    turns = tuple(Turn("bot" if i % 2 else "user", f"line {i}") for i in range(5))
    chat = TrainingChat(Conversation(turns), (), tokens=(5, 6, 7), logprobs=(0.0, 0.0, 0.0), field="tokens")
    example = only(chat, tokenizer, max_length=24)
    assert tokenizer.decode(example.ids[:-2]) == "User: line 4\nBot:"
    assert (example.replies.dropped_turns, len(example.targets)) == (4, 3)


def test_a_teachers_tokens_are_targets_as_given_with_its_probabilities() -> None:
    tokenizer = character_tokenizer()
    ids = tokenize_texts(tokenizer, ["ab"])[0]
    prompt = Conversation((Turn("user", "hi"),))
    chat = TrainingChat(
        prompt, (), tokens=(*ids, tokenizer.eos_token_id), logprobs=(math.log(0.5), 0.0, -1.0), field="tokens"
    )
    example = only(chat, tokenizer)
    assert marked(example, tokenizer) == "User: hi\nBot:[ab</s>]"
    assert example.probabilities == pytest.approx([0.5, 1.0, math.exp(-1)])
    assert len(example.ids) == len("User: hi\nBot:ab")  # the last is predicted and not read


def test_a_teachers_token_that_the_tokenizer_does_not_have_is_named() -> None:
    tokenizer = character_tokenizer()
    chat = TrainingChat(
        Conversation((Turn("user", "hi"),)), (), tokens=(5, 9999), logprobs=(0.0, 0.0), line=3, field="tokens"
    )
    rows, [rejection] = tokenize_chats([chat], tokenizer, 100)
    assert rows == []
    assert rejection.field == "tokens"
    assert rejection.found == f"token 9999; needed: ids below {len(tokenizer)}, of this tokenizer"


def plain(text: str) -> TrainingChat:
    return TrainingChat(Conversation(()), (), file="t.jsonl", line=2, field="text", text=text)


def test_of_a_plain_text_every_token_is_learned_and_the_eos_behind_it() -> None:
    tokenizer = character_tokenizer()
    example = only(plain("once\nupon"), tokenizer)
    assert marked(example, tokenizer) == "o[nce\nupon</s>]"  # nothing predicts the first token
    with_bos = character_tokenizer(bos="<s>")
    assert marked(only(plain("once"), with_bos), with_bos) == "<s>[once</s>]"
    assert marked(only(plain("<s>once</s>"), with_bos), with_bos) == "<s>[once</s>]"


def test_a_long_text_becomes_several_rows_and_each_of_its_tokens_is_learned_once() -> None:
    tokenizer = character_tokenizer(bos="<s>")
    text = "".join(chr(97 + i % 26) for i in range(53))
    rows, rejections = tokenize_chats([plain(text)], tokenizer, 20)
    assert rejections == []
    assert [len(row.ids) for row in rows] == [20, 20, 14]
    assert tokenizer.decode([target for row in rows for target in row.targets]) == text + "</s>"
    assert all(row.origin == "t.jsonl:2" for row in rows)


def test_a_reply_of_weight_0_is_context() -> None:
    tokenizer = character_tokenizer()
    chat = chat_of("hi", "yo", "who", "me", outputs=(3,))
    first = replace(chat.conversation.turns[1], learned=False)
    chat = replace(
        chat,
        conversation=replace(
            chat.conversation, turns=(chat.conversation.turns[0], first, *chat.conversation.turns[2:])
        ),
    )
    assert marked(only(chat, tokenizer), tokenizer) == "User: hi\nBot: yo\nUser: who\nBot:[ me</s>]"


def test_a_row_whose_last_reply_loses_text_is_rejected_and_an_earlier_one_is_left_out() -> None:
    thoughtless = CHATML.replace("message.content", "message.content.split('</think>')[-1]")
    tokenizer = character_tokenizer(template=thoughtless)
    lost = "the chat template removes the text between <think> and </think>; needed: a template that keeps it"
    rows, [rejection] = tokenize_chats([chat_of("hi", "yo", "a", "<think>so</think>b")], tokenizer, 1000)
    assert (rows, rejection.found, rejection.reason) == ([], lost, UNFIT)
    [row], [rejection] = tokenize_chats([chat_of("hi", "<think>so</think>yo", "a", "b")], tokenizer, 1000)
    assert marked(row, tokenizer) == "<user>hi</s>\n<assistant>yo</s>\n<user>a</s>\n<assistant>[b</s>]"
    assert (rejection.found, rejection.reason) == (lost, EARLIER)
