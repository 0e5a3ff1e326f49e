"""The grammar checker accepts all replies of the bots that are not garbled, and none of fifty corruptions."""

import random

import pytest

from lmgym.apps.world.bots import BOTS, speak
from lmgym.apps.world.checker import faults
from lmgym.apps.world.grammar import BOT_TEMPLATES, Grammar
from lmgym.apps.world.vocabulary import draw_vocabulary

GRAMMAR = Grammar(draw_vocabulary(0))
# {n} and {m} are things of one topic, {o} is of another, {a} an adjective, {p} a persona's name
CORRUPTIONS = (
    # nothing, or no sentence
    "", "   ", ".", "?!", "{n}", "{n}.", "ok", "...",
    # words left out
    "{n} {a}.", "i saw today.", "my friend {n}.", "{n} go well {m}.", "i dream {n}.", "you like {n}?", "{n} or?",
    "i not like {n}.",
    # words doubled
    "i i like {n}.", "{n} are are {a}.", "i like {n} {n}.", "ok ok.", "why why {n}?",
    # words in another order
    "{n} like i.", "like do you {n}?", "saw i {n} today.", "friend my has {n}.", "late it is.", "{a} are {n}.",
    # the wrong kind of word
    "i like {a}.", "{n} are {m}.", "why {a}?", "i like {p}.", "i saw it today.",
    # the wrong mark, or none
    "{n} are {a}?", "do you like {n}.", "i like {n}", "{n}, or {m}?", "i like {n},", "i like {n}. ok",
    # words of no such world
    "i like {n}s.", "i like flurbs.", "{n} are wonderful.", "the {n} are {a}.", "i likes {n}.",
    # what users say, and what templates cannot
    "tell me about {n}.", "i miss {n}.", "{n} or {n}?", "{n} go well with {o}.",
    # capitals, spaces, leftovers of a template
    "I like {n}.", "i like  {n}.", "Bot: i like {n}.",
)  # fmt: skip


def filled(template: str) -> str:
    topics = list(GRAMMAR.vocabulary.topics.values())
    return template.format(
        n=topics[0][0], m=topics[0][1], o=topics[1][0], a=GRAMMAR.vocabulary.adjectives[0],
        p=GRAMMAR.vocabulary.personas[0].name.lower(),
    )  # fmt: skip


@pytest.mark.parametrize("corruption", CORRUPTIONS)
@pytest.mark.parametrize("around", ["{}", "ok. {}", "{} i had tea."])
def test_a_corruption_is_found_alone_and_among_good_sentences(corruption: str, around: str) -> None:
    if around != "{}" and not corruption.strip():
        return  # nothing between two sentences is nothing wrong
    assert faults(GRAMMAR, around.format(filled(corruption)))


@pytest.mark.parametrize("template", [template for group in BOT_TEMPLATES.values() for template in group])
def test_every_sentence_of_the_bots_is_accepted(template: str) -> None:
    assert faults(GRAMMAR, filled(template)) == []


def test_bots_replies_are_accepted_unless_garbled() -> None:
    rng = random.Random(0)
    persona = GRAMMAR.vocabulary.personas[0]
    topics = list(GRAMMAR.vocabulary.topics)
    replies = []
    for i in range(2000):
        topic = topics[i % len(topics)]
        replies.append(
            speak(GRAMMAR, rng, BOTS[i % len(BOTS)], persona, topic, [GRAMMAR.vocabulary.topics[topic][0]], [])
        )
    wrong = [reply for reply in replies if faults(GRAMMAR, reply)]
    assert 0.005 < len(wrong) / len(replies) < 0.03
    assert faults(GRAMMAR, " ".join(["ok."] * 10)) == ["10 sentences"]
