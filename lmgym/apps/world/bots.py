"""Bots whose replies vary in quality: each has its rates of leaving the topic, repeating itself, and so on.

A conversation has one bot, and half of its replies come from the common mixture: so quality varies between
conversations, and more within them.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from lmgym.apps.world.grammar import BOT_TEMPLATES, Grammar, pick
from lmgym.apps.world.vocabulary import Persona


@dataclass(frozen=True)
class Manners:
    """Probabilities of a bot's habits in a reply."""

    off_topic: float = 0.30
    echo: float = 0.45
    curious: float = 0.40
    opinion: float = 0.22  # on a thing of its persona, or of the topic
    contrary: float = 0.45  # an opinion opposite to the persona's
    repeats: float = 0.14
    rude: float = 0.06
    dull: float = 0.14
    warm: float = 0.15
    rambles: float = 0.18
    garbled: float = 0.02


COMMON = Manners()
BOTS = (
    COMMON,
    Manners(off_topic=0.10, echo=0.65, curious=0.60, contrary=0.10, repeats=0.03, rude=0.01, dull=0.05, warm=0.25),
    Manners(off_topic=0.70, echo=0.10),
    Manners(contrary=0.90, opinion=0.60),
    Manners(repeats=0.45),
    Manners(rude=0.35, warm=0.02),
    Manners(dull=0.50, curious=0.10),
    Manners(rambles=0.60),
)


def speak(
    grammar: Grammar,
    rng: random.Random,
    manners: Manners,
    persona: Persona,
    topic: str,
    named: Sequence[str],
    earlier: Sequence[str],
) -> str:
    """A reply to a user who just named things of a topic; `earlier` are its previous sentences."""
    if rng.random() < 0.5:
        manners = COMMON
    if rng.random() < manners.dull:
        dull = BOT_TEMPLATES["dull"]
        return pick(rng, dull) if rng.random() < 0.7 else " ".join(rng.sample(dull, 2))
    subject = topic
    if rng.random() < manners.off_topic:
        subject = pick(rng, [name for name in grammar.vocabulary.topics if name != topic])
    sentences = [pick(rng, BOT_TEMPLATES["warm"])] if rng.random() < manners.warm else []
    thing = pick(rng, named) if named and subject == topic and rng.random() < manners.echo else None
    sentences.append(grammar.say(rng, BOT_TEMPLATES["statement"], subject, thing))
    if rng.random() < manners.opinion:
        sentences.append(_opinion(grammar, rng, manners, persona, subject))
    if rng.random() < manners.rambles:
        sentences += rng.sample(BOT_TEMPLATES["small_talk"], rng.randint(1, 3))
        sentences.append(grammar.say(rng, BOT_TEMPLATES["statement"], subject))
    if rng.random() < manners.rude:
        sentences.insert(rng.randint(0, len(sentences)), pick(rng, BOT_TEMPLATES["rude"]))
    if rng.random() < manners.curious:
        sentences.append(grammar.say(rng, BOT_TEMPLATES["question"], subject))
    if rng.random() < manners.repeats:
        sentences[rng.randint(0, len(sentences) - 1)] = pick(rng, earlier or sentences)
    if rng.random() < manners.garbled:
        sentences = [_shuffled(rng, sentence) for sentence in sentences]
    return " ".join(sentences)


def _opinion(grammar: Grammar, rng: random.Random, manners: Manners, persona: Persona, subject: str) -> str:
    """Usually on a thing that the persona has an opinion on; otherwise on any thing of the subject."""
    if rng.random() < 0.75:
        kind, thing = pick(rng, [("like", persona.likes), ("dislike", persona.dislikes)])
        if rng.random() < manners.contrary:
            kind = "dislike" if kind == "like" else "like"
    else:
        kind, thing = pick(rng, ("like", "dislike")), pick(rng, grammar.vocabulary.topics[subject])
    return pick(rng, BOT_TEMPLATES[kind]).format(n=thing)


def _shuffled(rng: random.Random, sentence: str) -> str:
    words = sentence[:-1].split()
    rng.shuffle(words)
    return " ".join(words) + sentence[-1]
