"""Checks, sentence by sentence, that a reply is in the language of the world's bots."""

from lmgym.apps.world.grammar import BOT_TEMPLATES, Grammar

# a bot's longest reply: warm, statement, opinion, three of small talk, statement, rude, question
MOST_SENTENCES = 9


def faults(grammar: Grammar, reply: str) -> list[str]:
    """The reasons why no bot of this world could have made a reply; empty if one could.

    Every sentence must fit a bot's template, with words of this world; the things of a sentence must differ and belong
    to one topic. Case and spaces count.
    """
    sentences = grammar.parse(reply)
    if not sentences:
        return ["no sentence"]
    problems = []
    if " ".join(sentence.text for sentence in sentences) != reply:
        problems.append("capitals or spaces")
    if len(sentences) > MOST_SENTENCES:
        problems.append(f"{len(sentences)} sentences")
    for sentence in sentences:
        if sentence.kind not in BOT_TEMPLATES:
            problems.append(f"{sentence.kind}: {sentence.text}")
        elif len(set(sentence.things)) < len(sentence.things):
            problems.append(f"a repeated thing: {sentence.text}")
        elif len({grammar.topic_of[thing] for thing in sentence.things}) > 1:
            problems.append(f"two topics: {sentence.text}")
    return problems
