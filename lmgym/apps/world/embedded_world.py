"""Chat with the simulated world: its bots as the generator, and the demo's scorer and the hidden utility as scorers."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lmgym.apps.world.bots import BOTS, speak
from lmgym.apps.world.vocabulary import Persona
from lmgym.apps.world.world import World
from lmgym.errors import InputError
from lmgym.text import Conversation

DEMO = Path("outputs/demo")


def persona_of(world: World, text: str) -> Persona:
    """The world's persona with that text, or with its first two things that the world knows; else the world's first."""
    personas = world.grammar.vocabulary.personas
    for persona in personas:
        if persona.text == text:
            return persona
    first, topic_of = personas[0], world.grammar.topic_of
    things = [word for word in text.lower().replace(".", " ").replace(",", " ").split() if word in topic_of]
    return Persona(first.name, *things[:2]) if len(things) >= 2 else first


def bot_reply(world: World, conversation: Conversation, rng: np.random.Generator) -> str:
    """A reply by a random bot of the world, so that the candidates of a turn differ in quality."""
    draw = random.Random(int(rng.integers(1 << 60)))
    named = world.grammar.named_things(conversation)
    topics = [world.grammar.topic_of[thing] for thing in named] or world.topics
    persona = persona_of(world, conversation.persona)
    said = world.grammar.bot_sentences(conversation)
    return speak(world.grammar, draw, draw.choice(BOTS), persona, draw.choice(topics), named, said)


class LastExchangeScorer:
    """A scorer that sees the persona, the last exchange and the message: the input in this world's logs."""

    def __init__(self, judge: Any) -> None:
        self.judge = judge
        self.model = getattr(judge, "model", None)  # for the session's file

    def score(self, conversations: Sequence[Conversation], replies: Sequence[str]) -> Any:
        """The scorer's scores."""
        return self.judge.score([_logged(c) for c in conversations], replies)

    def seen(self, conversation: Conversation, reply: str, beside: Sequence[str] = ()) -> Any:
        """The scorer's input."""
        return self.judge.seen(_logged(conversation), reply, beside)


def _logged(conversation: Conversation) -> Conversation:
    return replace(conversation, turns=conversation.turns[-3:])


class HiddenUtilityScorer:
    """The hidden utility of a reply for average tastes: the ground truth of this world."""

    def __init__(self, world: World) -> None:
        self.world = world

    def score(self, conversations: Sequence[Conversation], replies: Sequence[str]) -> np.ndarray:
        """The utility of each reply."""
        return self.world.utility([_logged(c) for c in conversations], replies)


def demo_scorer():
    """The scorer of `make demo`. Raises InputError if there is none."""
    folder = DEMO / "scorer" / "model"
    if not (folder / "config.json").is_file():
        raise InputError(
            f"there is no scorer in {folder}; `lmgym demo` trains it in about 4 minutes on 2 cores (the experiment "
            "random_baseline needs none)"
        )
    from lmgym.scoring.scorers import HFScorer

    return LastExchangeScorer(HFScorer.load(folder))


def sample_conversations(world: World, most: int = 20) -> list[Conversation]:
    """Complete chats of the world's users with its bots."""
    from lmgym.apps.world.world import simulate

    chats = simulate(world, 40, seed=1).chats
    return [Conversation(tuple(chat.turns), chat.persona.text) for chat in chats if len(chat.turns) > 4][:most]
