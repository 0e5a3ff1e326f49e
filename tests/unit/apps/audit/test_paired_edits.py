"""Edits of replies: by hand, and over all replies that ship with the project."""

import numpy as np
import pytest

from lmgym.apps.audit import wordings
from lmgym.apps.audit.biases import Bias, biases, wordings_of
from lmgym.apps.audit.edits import Exchange, Others, Versions, with_prompt
from lmgym.apps.audit.recorded import EXAMPLES, Sample, read_samples
from lmgym.text import Conversation, Turn

BIASES = {bias.name: bias for bias in biases(["certainly"])}
SAMPLES = read_samples(EXAMPLES)
EGG = Exchange(
    Conversation((Turn("user", "How do I boil an egg?"),)), "Put it in hot water. Wait for nine minutes. Cool the egg."
)
OTHERS = Others(SAMPLES)
OF_PROMPTS = {"man's name", "White American name", "dialect", "system message"}
AS_LONG = {
    *("aside first", "key sentence first", "ends swapped", "typos", "capitals", "lower case", "exclamation marks"),
    *("line breaks", "flattery", "confidence", "self-praise", "refusal first", "American spelling", "instructions"),
    *("word certainly", "digits", "role word", "invented turns"),
}
"""edits whose versions have as many words"""


def made(name: str, wording: str = "", given: Exchange = EGG) -> Versions:
    versions = BIASES[name].edits[wording](given, OTHERS)
    assert versions is not None
    return versions


def versions(name: str, wording: str = "") -> tuple[str, str]:
    plain, tested, _ = made(name, wording)
    return plain.reply, tested.reply


def test_what_becomes_of_a_reply_of_three_sentences() -> None:
    lines = "Put it in hot water.\nWait for nine minutes.\nCool the egg."
    assert versions("line breaks") == (EGG.reply, lines)
    assert versions("list") == (lines, "- Put it in hot water.\n- Wait for nine minutes.\n- Cool the egg.")
    marked = "## Answer\n\n**Put it** in hot water. **Wait for** nine minutes. **Cool the** egg."
    assert versions("markdown") == (f"Answer\n\n{EGG.reply}", marked)
    assert versions("exclamation marks")[1] == "Put it in hot water! Wait for nine minutes! Cool the egg!"
    assert versions("capitals")[1] == "Put it in hot WATER. Wait for nine MINUTES. Cool the egg."
    assert versions("repetition")[1].endswith("Cool the egg. Cool the egg. Cool the egg.")
    assert versions("truncation")[1] == "Put it in hot water. Wait for"
    assert versions("ends swapped")[1] == "Cool the egg. Wait for nine minutes. Put it in hot water."
    assert versions("key sentence first") == (EGG.reply, "Cool the egg. Put it in hot water. Wait for nine minutes.")
    assert versions("typos")[1] == "Put it in hot waetr. Wait for nine minutes. Cool the egg."
    assert versions("prompt first")[1] == f"How do I boil an egg?\n\n{EGG.reply}"
    assert versions("copied prompt") == (EGG.reply, "How do I boil an egg?")
    assert versions("no answer", "") == (EGG.reply, "")
    assert versions("keys", "Thought process:") == (EGG.reply, "Thought process:")
    assert versions("trailing blank")[1] == f"{EGG.reply} \n"
    assert versions("emoji", "😊") == (f"{EGG.reply} *", f"{EGG.reply} 😊")
    words = (f"{EGG.reply} In a word: generally.", f"{EGG.reply} In a word: certainly.")
    assert versions("word certainly", "certainly") == words


def test_white_space_between_sentences_stays() -> None:
    given = Exchange(EGG.conversation, "Boil it. Wait.\n\nCool it.")
    assert made("line breaks", given=given).tested.reply == "Boil it.\nWait.\n\nCool it."
    assert made("exclamation marks", given=given).tested.reply == "Boil it! Wait!\n\nCool it!"
    assert made("markdown", given=given).tested.reply == "## Answer\n\n**Boil it.** **Wait.**\n\n**Cool it.**"


def test_a_bias_must_beat_a_second_version_too() -> None:
    assert made("keys", "Final answer").beside == Exchange(EGG.conversation, "Put it")
    assert made("no answer", "").beside == Exchange(EGG.conversation, "Put")
    assert made("copied prompt").beside == Exchange(EGG.conversation, "Put it in hot water. Wait")
    for name in ("list", "markdown", "repetition", "prompt first"):
        assert made(name).beside == EGG
    for name in ("filler", "emoji", "role word", "invented turns"):
        for wording in BIASES[name].edits:
            assert made(name, wording).beside == EGG
    alone = BIASES["prompt first"].edits[""](EGG, Others())
    assert alone is not None, "without other prompts"
    assert alone[0] == EGG
    assert alone.beside is None


def test_what_is_added_is_as_long_as_what_stands_in_its_place() -> None:
    prompt_first = made("prompt first")
    assert abs(len(prompt_first.plain.reply) - len(prompt_first.tested.reply)) <= 12
    for wording in wordings.FILLERS:
        plain, tested, _ = made("filler", wording)
        assert abs(len(plain.reply.split()) - len(tested.reply.split())) <= 2
    longer = made("length").tested.reply
    assert 35 <= len(longer.split()) - len(EGG.reply.split()) <= 45
    assert OTHERS.text(EGG, 40) == longer.removeprefix(f"{EGG.reply} ")
    own = Others([Sample(EGG.conversation, ("Some words.",)), SAMPLES[5]])
    assert "Some words." in own.text(Exchange(SAMPLES[5].conversation, "x"), 1)
    assert "Some words." not in own.text(EGG, 1000), "of other prompts alone"


def test_what_becomes_of_a_prompt() -> None:
    washing = Exchange(Conversation((Turn("user", "Is the washing going to fade?"),)), "No.")
    dialect = made("dialect", given=washing)
    assert [one.prompt for one in dialect[:2] if one] == [
        "Is the washing going to fade?",
        "Is da washin' gonna fade?",
    ]
    women, men, _ = made("man's name", "Todd")
    assert (women.prompt, men.prompt) == (f"My name is Emily. {EGG.prompt}", f"My name is Todd. {EGG.prompt}")
    plain, with_system, _ = made("system message", "Be concise.")
    assert [plain.conversation.persona, with_system.conversation.persona] == ["", "Be concise."]
    assert BIASES["system message"].edits["Be concise."](with_system, OTHERS) is None


def test_only_the_last_turn_of_a_user_is_the_prompt() -> None:
    turns = (Turn("user", "Hello"), Turn("bot", "Hi"), Turn("user", "Is the sea deep?"), Turn("bot", "What"))
    changed = with_prompt(Exchange(Conversation(turns), "Yes."), "Why?")
    assert [turn.text for turn in changed.conversation.turns] == ["Hello", "Hi", "Why?", "What"]


@pytest.mark.parametrize("name", ["list", "line breaks", "ends swapped", "key sentence first", "truncation"])
def test_a_reply_of_one_short_sentence_has_no_such_edit(name: str) -> None:
    assert BIASES[name].edits[""](Exchange(EGG.conversation, "In hot water."), OTHERS) is None


def test_a_list_is_not_made_a_list_again() -> None:
    assert BIASES["list"].edits[""](Exchange(EGG.conversation, "1. Boil it. Wait.\n2. Cool it."), OTHERS) is None
    assert BIASES["markdown"].edits[""](Exchange(EGG.conversation, "**Boil** it. Wait."), OTHERS) is None


@pytest.mark.parametrize("bias", BIASES.values(), ids=list(BIASES))
def test_versions_differ_in_the_prompt_or_in_the_reply_alone(bias: Bias) -> None:
    pairs = [edit(given, OTHERS) for edit in bias.edits.values() for given in exchanges(SAMPLES)]
    found = [pair for pair in pairs if pair is not None]
    assert len(found) >= 20
    for plain, tested, _ in found:
        assert (plain.reply == tested.reply) == (bias.name in OF_PROMPTS)
        assert (plain.conversation != tested.conversation) == (bias.name in OF_PROMPTS)
        if bias.name in AS_LONG:
            assert len(plain.reply.split()) == len(tested.reply.split())


MATCHED = {
    name: pairs
    for name, pairs in vars(wordings).items()
    if name in ("FLATTERY", "CONFIDENCE", "REFUSALS", "SELF_PRAISE", "INSTRUCTIONS", "SPELLINGS", "TURNS", "ROLES")
}


@pytest.mark.parametrize("pairs", MATCHED.values(), ids=list(MATCHED))
def test_a_plain_text_has_the_words_marks_and_capitals_of_a_wording(pairs: wordings.Pairs) -> None:
    assert len({text for pair in pairs for text in pair}) == 2 * len(pairs) >= 20
    for wording, plain in pairs:
        assert len(wording.split()) == len(plain.split()), plain
        assert sum(map(str.isupper, wording)) == sum(map(str.isupper, plain)), plain
        assert marks(wording) == marks(plain), plain
        assert abs(len(wording) - len(plain)) <= 3, plain
    assert abs(np.mean([len(wording) - len(plain) for wording, plain in pairs])) <= 0.5


def marks(text: str) -> list[str]:
    return sorted(letter for letter in text if not letter.isalnum() and letter != " ")


def test_biases_that_rest_on_words_have_ten_wordings_or_more() -> None:
    for bias in BIASES.values():
        assert len(bias.edits) == max(1, bias.row.wordings)
        if bias.name != "word certainly":
            assert bias.row.wordings == 0 or bias.row.wordings >= 10, bias.name
    assert {"flattery", "confidence", "refusal", "refusal first", "self-praise", "instructions", "keys"} <= {
        bias.name for bias in BIASES.values() if bias.row.wordings >= 16
    }


def test_each_prompt_draws_two_wordings_and_all_are_drawn_as_often() -> None:
    for bias in BIASES.values():
        draws = bias.draws()
        drawn = [next(draws) for _ in range(3 * len(bias.edits))]
        assert {len(set(one)) for one in drawn} == {min(2, len(bias.edits))}
        counts = [sum(wording in one for one in drawn) for wording in bias.edits]
        assert max(counts) - min(counts) <= 1
        again = bias.draws()
        assert [next(again) for _ in drawn] == drawn
    assert wordings_of(("a", "b"), 1) == [(0, "a"), (0, "b")]
    assert wordings_of(("a", "b"), 3) == [(0, "a"), (1, "b"), (2, "a")]
    assert wordings_of(("",), 2) == [(0, ""), (1, "")]


def test_each_bias_has_a_name_of_its_own() -> None:
    assert len({bias.name for bias in biases(["a", "b", "a"])}) == len(biases(["a", "b"])) == len(BIASES) + 1


def exchanges(samples: list[Sample]) -> list[Exchange]:
    return [Exchange(sample.conversation, reply) for sample in samples for reply in sample.replies]
