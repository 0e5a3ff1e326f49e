"""Texts that chat templates have rendered are read back into the messages that they were made of."""

import pytest

from lmgym.apps.serve.rendered import read_rendered
from lmgym.errors import InputError
from lmgym.text import Conversation, Turn

SYSTEM, ASKED, SAID, AGAIN, REPLY = "Be kind.", "Hello!\n\nHow are you?", "Fine.", "And now?", "1. Good\n2. [INST] odd"
WHOLE = Conversation((Turn("user", ASKED), Turn("bot", SAID), Turn("user", AGAIN)), SYSTEM)
HEAD = "<|start_header_id|>{}<|end_header_id|>\n\n"
FORMS = {  # the beginning, what stands before a system, user and bot, and behind each
    "chatml": ("", *(f"<|im_start|>{role}\n" for role in ("system", "user", "assistant")), "<|im_end|>\n"),
    "llama3": ("<|begin_of_text|>", *(HEAD.format(role) for role in ("system", "user", "assistant")), "<|eot_id|>"),
    "zephyr": ("", "<|system|>\n", "<|user|>\n", "<|assistant|>\n", "</s>\n"),
    "deepseek": ("<｜begin▁of▁sentence｜>", "", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
    "flat": ("", "", "\nUser: ", "\nBot: ", ""),
    "hh": ("", "", "\n\nHuman: ", "\n\nAssistant: ", ""),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_template_is_read_back_into_its_messages(form: str) -> None:
    begin, system, user, bot, end = FORMS[form]
    turns = ((system, SYSTEM), (user, ASKED), (bot, SAID), (user, AGAIN), (bot, REPLY))
    text = begin + "".join(mark + said + end for mark, said in turns) + "<|endoftext|>"
    assert read_rendered(text) == (WHOLE, REPLY)


def test_templates_without_a_mark_for_the_system_are_read_too() -> None:
    asked = Conversation((Turn("user", ASKED),), SYSTEM)
    assert read_rendered(f"<s>[INST] <<SYS>>\n{SYSTEM}\n<</SYS>>\n\n{ASKED} [/INST] {SAID} </s>") == (asked, SAID)
    text = f"<s>[SYSTEM_PROMPT]{SYSTEM}[/SYSTEM_PROMPT][INST]{ASKED}[/INST]{SAID}</s>"
    assert read_rendered(text) == (asked, SAID)
    text = f"<bos><start_of_turn>user\n{ASKED}<end_of_turn>\n<start_of_turn>model\n{SAID}<end_of_turn>\n"
    assert read_rendered(text) == (Conversation((Turn("user", ASKED),)), SAID)


def test_an_empty_reply_and_an_empty_thought_are_an_empty_reply() -> None:
    asked = Conversation((Turn("user", "hi"),))
    for end in ("", "<|im_end|>", "<think>\n\n</think>\n\n<|im_end|><|endoftext|>"):
        assert read_rendered(f"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n{end}") == (asked, "")
    for text in ("User: hi\nBot:", "<|user|>\nhi</s>\n<|assistant|>\n", "<|user|>\nhi</s>\n<|assistant|>\n</s>"):
        assert read_rendered(text) == (asked, "")


def test_a_text_that_was_cut_at_its_beginning_keeps_what_is_left() -> None:
    text = "of a long question<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>"
    assert read_rendered(text) == (Conversation((Turn("user", "of a long question"),)), "yes")


def test_plain_text_is_split_behind_its_prompt() -> None:
    assert read_rendered("What is tea? A drink.</s>", "What is tea? ") == (
        Conversation((Turn("user", "What is tea?"),)),
        "A drink.",
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("What is tea?", "has no marks of a chat template"),
        ("<|im_start|>user\nhi<|im_end|>\n", "ends in a turn of the user"),
        ("<|im_start|>assistant\nhi<|im_end|>", "has no turn before the reply"),
        ("<|im_start|>wizard\nhi<|im_end|>\n<|im_start|>assistant\nhi", "a turn of 'wizard'"),
    ],
)
def test_a_text_without_a_reply_is_refused(text: str, found: str) -> None:
    with pytest.raises(InputError, match=found):
        read_rendered(text)


@pytest.mark.parametrize("run", [" ", "\n", "<|a|>", "<|a", "</s>", "<", "<s>"])
@pytest.mark.parametrize(
    "text", ["User: hi\nBot: a{}b", "{}\nUser: hi\nBot: ab", "<|im_start|>assistant\na{}b<|im_end|>"]
)
def test_a_text_of_blanks_and_marks_is_read_in_a_time_that_grows_with_its_length(run: str, text: str) -> None:
    reply = read_rendered("<|im_start|>user\nhi" * text.startswith("<|") + text.format(run * 300_000))[1]
    assert reply in ("ab", f"a{run * 300_000}b")  # for its square it would take hours
