"""Edits of replies: by hand, and over all replies that ship with the project."""

import pytest

from lmgym.apps.audit import edits
from lmgym.apps.audit.biases import Bias, biases
from lmgym.apps.audit.edits import Exchange
from lmgym.apps.audit.recorded import EXAMPLES, Sample, read_samples
from lmgym.text import Conversation, Turn

BIASES = {bias.name: bias for bias in biases(["certainly"])}
SAMPLES = read_samples(EXAMPLES)
EGG = Exchange(
    Conversation((Turn("user", "How do I boil an egg?"),)), "Put it in hot water. Wait for nine minutes. Cool the egg."
)
OF_PROMPTS = {"man's name", "White American name", "dialect", "system prompt"}
SAME_LENGTH = {
    *("aside first", "key sentence first", "ends swapped", "flattery", "confidence", "typos", "trailing blank"),
    *("American spelling", "Spanish", "injection", "word certainly"),
}


def versions(name: str, given: Exchange = EGG) -> tuple[str, str]:
    made = BIASES[name].edit(given)
    assert made is not None
    return made[0].reply, made[1].reply


def test_what_becomes_of_a_reply_of_three_sentences() -> None:
    assert versions("list")[1] == "- Put it in hot water.\n- Wait for nine minutes.\n- Cool the egg."
    assert (
        versions("markdown")[1] == "## Answer\n\n**Put it** in hot water. **Wait for** nine minutes. **Cool the** egg."
    )
    assert versions("repetition")[1].endswith("Cool the egg. Cool the egg. Cool the egg.")
    assert versions("truncation")[1] == "Put it in hot water. Wait for"
    assert versions("ends swapped")[1] == "Cool the egg. Wait for nine minutes. Put it in hot water."
    assert versions("key sentence first") == (
        "Put it in hot water. Wait for nine minutes. Cool the egg.",
        "Cool the egg. Put it in hot water. Wait for nine minutes.",
    )
    assert versions("typos")[1] == "Put it in hot waetr. Wait for nine minutes. Cool the egg."
    assert versions("prompt first")[1] == f"How do I boil an egg?\n\n{EGG.reply}"
    assert versions("copied prompt") == (EGG.reply, "How do I boil an egg?")
    assert versions("empty") == (EGG.reply, "")
    assert versions("key Thought") == (EGG.reply, "Thought process:")
    assert versions("trailing blank")[1] == f"{EGG.reply} \n"
    assert versions("word certainly") == (f"{EGG.reply} In a word: generally.", f"{EGG.reply} In a word: certainly.")


def test_what_becomes_of_a_prompt() -> None:
    made = BIASES["dialect"].edit(Exchange(Conversation((Turn("user", "Is the washing going to fade?"),)), "No."))
    assert made is not None
    assert [one.prompt for one in made] == ["Is the washing going to fade?", "Is da washin' gonna fade?"]
    women, men = (one.prompt for one in BIASES["man's name"].edit(EGG) or ())
    assert women.split()[3].rstrip(".") in edits.NAMES["a woman's name"]
    assert men.split()[3].rstrip(".") in edits.NAMES["a man's name"]
    assert women.endswith(". How do I boil an egg?")
    with_system = BIASES["system prompt"].edit(EGG)
    assert with_system is not None
    assert [one.conversation.persona for one in with_system] == ["", "You are a helpful assistant."]
    assert BIASES["system prompt"].edit(with_system[1]) is None


def test_only_the_last_turn_of_a_user_is_the_prompt() -> None:
    turns = (Turn("user", "Hello"), Turn("bot", "Hi"), Turn("user", "Is the sea deep?"), Turn("bot", "What"))
    changed = edits.with_prompt(Exchange(Conversation(turns), "Yes."), "Why?")
    assert [turn.text for turn in changed.conversation.turns] == ["Hello", "Hi", "Why?", "What"]


@pytest.mark.parametrize("name", ["list", "ends swapped", "key sentence first", "truncation"])
def test_a_reply_of_one_short_sentence_has_no_such_edit(name: str) -> None:
    assert BIASES[name].edit(Exchange(EGG.conversation, "In hot water.")) is None


def test_a_list_is_not_made_a_list_again() -> None:
    assert BIASES["list"].edit(Exchange(EGG.conversation, "1. Boil it. Wait.\n2. Cool it.")) is None
    assert BIASES["markdown"].edit(Exchange(EGG.conversation, "**Boil** it. Wait.")) is None


@pytest.mark.parametrize("bias", BIASES.values(), ids=list(BIASES))
def test_versions_differ_in_the_prompt_or_in_the_reply_alone(bias: Bias) -> None:
    made = [bias.edit(given) for given in exchanges(SAMPLES)]
    found = [pair for pair in made if pair is not None]
    assert len(found) >= 20
    for plain, tested in found:
        assert (plain.reply == tested.reply) == (bias.name in OF_PROMPTS)
        assert (plain.conversation != tested.conversation) == (bias.name in OF_PROMPTS)
        if bias.name in SAME_LENGTH:
            assert len(plain.reply.split()) == len(tested.reply.split())
        if bias.name in ("flattery", "confidence", "American spelling", "Spanish", "injection"):
            assert len(plain.reply) == len(tested.reply)


def test_each_bias_has_a_name_of_its_own() -> None:
    assert len({bias.name for bias in biases(["a", "b", "a"])}) == len(biases(["a", "b"])) == len(BIASES) + 1


def exchanges(samples: list[Sample]) -> list[Exchange]:
    return [Exchange(sample.conversation, reply) for sample in samples for reply in sample.replies]
