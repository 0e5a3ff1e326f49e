"""Whether a reply is of the world's language: what its bots could have said, judged sentence by sentence."""

from lmgym.world.grammar import BOT_TEMPLATES, Grammar

# a bot's longest reply: warm, statement, opinion, three of small talk, statement, rude, question
MOST_SENTENCES = 9


def faults(grammar: Grammar, reply: str) -> list[str]:
    """Why no bot of this world says such a reply; empty where one might.

    Every sentence must come out of a bot's template, with words of this world; the things of one sentence differ and
    are of one topic. Case and spaces count.
    """
    sentences = grammar.parse(reply)
    if not sentences:
        return ["says nothing"]
    found = []
    if " ".join(sentence.text for sentence in sentences) != reply:
        found.append("capitals or spaces")
    if len(sentences) > MOST_SENTENCES:
        found.append(f"{len(sentences)} sentences")
    for sentence in sentences:
        if sentence.kind not in BOT_TEMPLATES:
            found.append(f"{sentence.kind}: {sentence.text}")
        elif len(set(sentence.things)) < len(sentence.things):
            found.append(f"a thing beside itself: {sentence.text}")
        elif len({grammar.topic_of[thing] for thing in sentence.things}) > 1:
            found.append(f"two topics: {sentence.text}")
    return found
