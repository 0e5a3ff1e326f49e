"""Messages of an episode: joined by speaker, and for templates without a system role."""

import pytest

from lmgym.apps.agents.dialogue import add_message, conversation_of, takes_system
from lmgym.errors import InputError
from lmgym.text import Conversation, Turn, render

REFUSES = (
    "{%- for m in messages -%}{%- if m.role == 'system' -%}{{ raise_exception('no system') }}{%- endif -%}"
    "[{{ m.role }}]{{ m.content }}{%- endfor -%}"
)
LEAVES_OUT = "{%- for m in messages if m.role != 'system' -%}[{{ m.role }}]{{ m.content }}{%- endfor -%}"


def said(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def test_messages_of_one_speaker_become_one() -> None:
    messages = [said("user", "a")]
    for role, text in (("user", "a"), ("user", "b"), ("assistant", "c"), ("user", "d")):
        add_message(messages, role, text)
    assert messages == [said("user", "a\n\nb"), said("assistant", "c"), said("user", "d")]


def test_a_conversation_has_the_system_prompt_as_its_persona_or_in_its_first_turn() -> None:
    messages = [said("system", "rules"), said("user", "one"), said("assistant", "hit"), said("user", "two")]
    turns = Turn("user", "one"), Turn("bot", "hit"), Turn("user", "two")
    assert conversation_of(messages, True) == Conversation(turns, "rules")
    first = Turn("user", "rules\n\none")
    assert conversation_of(messages, False) == Conversation((first, *turns[1:]))


def test_a_conversation_never_has_two_user_turns_in_a_row() -> None:
    found = conversation_of([said("user", "one"), said("user", "two")], True)
    assert found == Conversation((Turn("user", "one\n\ntwo"),))


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([said("user", "a"), said("assistant", "b")], "do not end with one of the user"),
        ([], "do not end with one of the user"),
        (["hello"], "a message is 'hello'; needed: a dict with role and content"),
        ([{"role": "user", "content": 3}], "needed: a dict with role and content, a text"),
        ([said("pirate", "arr")], "has the role 'pirate', which is not supported"),
    ],
)
def test_what_is_no_dialogue_is_refused(messages, message: str) -> None:
    with pytest.raises(InputError, match=message):
        conversation_of(messages, True)


@pytest.mark.parametrize(("template", "takes"), [(None, True), (REFUSES, False), (LEAVES_OUT, False)])
def test_templates_without_a_system_role_are_recognised(tokenizers, template: str | None, takes: bool) -> None:
    tokenizer = tokenizers["gpt2"]
    before = tokenizer.chat_template
    tokenizer.chat_template = template or before
    try:
        assert takes_system(tokenizer) is takes
        text = render(tokenizer, conversation_of([said("system", "rules"), said("user", "one")], takes))
        assert "rules" in text
        assert "one" in text
    finally:
        tokenizer.chat_template = before
