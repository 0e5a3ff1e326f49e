"""Somebody to pick, and somebody to talk to them: a person with hidden tastes, and a bot whose replies leave a choice.

Both live in the simulated world of `lmgym/environments`. What all people agree on (`agreed_worth`: on topic, not rude,
not dull) is what an old scorer can learn from anybody. On what a reply has besides (`TASTES`) this person has an
opinion that nobody told the old scorer: loves one kind of sentence, hates another. The bot says each kind by the toss
of a coin, so the tastes have nothing to do with what all agree on.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lmgym.apps.world.grammar import BOT_TEMPLATES, pick
from lmgym.apps.world.users import message
from lmgym.apps.world.utility import FEATURES, WEIGHTS
from lmgym.apps.world.world import World
from lmgym.text import Conversation

# what a reply may have besides its statement: the kinds of sentence of the world's grammar that show it
TASTES = {
    "questions": ("question",),
    "opinions": ("like", "dislike"),
    "small talk": ("small_talk",),
    "warm words": ("warm",),
}
WANDERS_OFF, MANNERS = 0.3, (0.7, 0.15, 0.15)  # how often the bot leaves the topic; says something, or is dull, or rude
AGREED = ("on_topic", "off_topic", "rude", "dull")
AGREED_SHARE, TASTE, NOISE = 0.5, 3.0, 0.5  # of this person: noise is the scale of a Gumbel variable
TALKATIVE = 0.3


def bot_reply(world: World, conversation: Conversation, rng: np.random.Generator) -> str:
    """Two sentences: one that all agree on how good it is, and one that is a matter of taste."""
    draw, grammar = random.Random(int(rng.integers(1 << 60))), world.grammar
    topic = grammar.topic_of[grammar.named_things(conversation)[0]]
    if draw.random() < WANDERS_OFF:
        topic = pick(draw, [name for name in world.topics if name != topic])
    manner = draw.choices(("statement", "dull", "rude"), MANNERS)[0]
    closing = pick(draw, TASTES[pick(draw, tuple(TASTES))])
    return " ".join(grammar.say(draw, BOT_TEMPLATES[kind], topic) for kind in (manner, closing))


def lines_of_a_chat(world: World, rng: random.Random, turns: int) -> list[str]:
    """A person's messages in a chat, which do not depend on the replies."""
    topic = pick(rng, world.topics)
    return [message(world.grammar, rng, topic, TALKATIVE, opening=not turn) for turn in range(turns)]


def agreed_worth(world: World, conversations: Sequence[Conversation], replies: Sequence[str]) -> NDArray[np.float64]:
    """Utility [n] of replies to everyone, by the world's features and the weights of AGREED."""
    columns = [FEATURES.index(name) for name in AGREED]
    return world.features(conversations, replies)[:, columns] @ np.array([WEIGHTS[name] for name in AGREED])


@dataclass
class Person:
    """Loves one thing in replies and hates another, both drawn by the seed, and chooses with noise."""

    world: World
    seed: int
    loves: str = field(init=False)
    hates: str = field(init=False)
    rng: np.random.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.loves, self.hates = random.Random(f"tastes {self.seed}").sample(sorted(TASTES), 2)
        self.rng = np.random.default_rng([self.seed, 0])

    def worth(self, conversation: Conversation, replies: Sequence[str]) -> NDArray[np.float64]:
        """Utility [n] of replies to this person."""
        found = AGREED_SHARE * agreed_worth(self.world, [conversation] * len(replies), replies)
        return found + TASTE * np.array([self._has(r, self.loves) - self._has(r, self.hates) for r in replies])

    def choose(self, conversation: Conversation, replies: Sequence[str]) -> int:
        """The index of the reply that the person picks: the best by worth and Gumbel noise (Luce 1959)."""
        noise = self.rng.gumbel(scale=NOISE, size=len(replies))
        return int(np.argmax(self.worth(conversation, replies) + noise))

    def _has(self, reply: str, taste: str) -> float:
        return float(any(sentence.kind in TASTES[taste] for sentence in self.world.grammar.parse(reply)))
