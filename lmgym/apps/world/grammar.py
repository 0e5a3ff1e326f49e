"""The language of a world: templates of sentences, and a parser of any text.

Texts of bots, scripts and trained policies go through the same parser; a sentence that fits no template is garbled.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from lmgym.apps.world.vocabulary import Vocabulary
from lmgym.text import Conversation

T = TypeVar("T")

# {n} and {m} are things, {a} is an adjective; the utility distinguishes the kinds
BOT_TEMPLATES = MappingProxyType(
    {
        "statement": (
            "{n} are {a}.",
            "i saw {n} today.",
            "my friend has {n}.",
            "{n} go well with {m}.",
            "i dream of {n}.",
        ),
        "question": ("do you like {n}?", "why {n}?", "where are your {n}?", "{n} or {m}?"),
        "like": ("i like {n}.", "i love {n}."),
        "dislike": ("i do not like {n}.", "i hate {n}."),
        "dull": ("ok.", "i see.", "fine.", "maybe.", "i do not know.", "sure."),
        "rude": ("you are boring.", "that is stupid.", "who cares.", "leave me alone."),
        "warm": ("that is lovely.", "thank you.", "i am glad."),
        "small_talk": ("it is late.", "i had tea.", "it rained.", "i slept well.", "time flies."),
    }
)
USER_TEMPLATES = MappingProxyType(
    {
        "opening": ("let us talk about {n}.", "hello, i want {n}."),
        "tell": ("i saw {n}.", "{n} were {a}.", "my sister has {n} and {m}.", "i miss {n}."),
        "ask": ("tell me about {n}.", "what about {n}?", "do you know {n}?"),
        "chatter": ("it was a long day.", "i am home.", "well."),
    }
)
PIECES = re.compile(r"[^.?!]*[.?!]|[^.?!]+$")
WORDS = re.compile(r"[a-z]+|[^a-z\s]")


@dataclass(frozen=True)
class Sentence:
    """A parsed sentence: its kind ("garbled" if it fits no template), the things it names, its number of words."""

    kind: str
    things: tuple[str, ...]
    words: int
    text: str


class Grammar:
    """Makes and parses sentences of one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.topic_of = vocabulary.topic_of
        self._slot = dict.fromkeys(self.topic_of, "{n}") | dict.fromkeys(vocabulary.adjectives, "{a}")
        self._kinds = {
            _shape(template.replace("{m}", "{n}"), {}): kind
            for templates in (USER_TEMPLATES, BOT_TEMPLATES)  # a template of both counts as the bot's
            for kind, group in templates.items()
            for template in group
        }
        self._parsed: dict[str, Sentence] = {}

    def say(self, rng: random.Random, templates: Sequence[str], topic: str, thing: str | None = None) -> str:
        """A sentence on a topic, about `thing` if it is given."""
        template = pick(rng, templates)
        if "{n}" not in template:
            return template
        things = self.vocabulary.topics[topic]
        first = thing or pick(rng, things)
        second = first
        while second == first:
            second = pick(rng, things)
        return template.format(n=first, m=second, a=pick(rng, self.vocabulary.adjectives))

    def parse(self, text: str) -> list[Sentence]:
        """The sentences of a text; case and white space do not matter."""
        pieces = (" ".join(piece.split()) for piece in PIECES.findall(text.lower()))
        return [self._parsed.get(piece) or self._parse_sentence(piece) for piece in pieces if piece]

    def named_things(self, conversation: Conversation) -> list[str]:
        """Things named in the last turn."""
        return [thing for turn in conversation.turns[-1:] for s in self.parse(turn.text) for thing in s.things]

    def bot_sentences(self, conversation: Conversation) -> list[str]:
        """The bot's sentences so far."""
        return [s.text for turn in conversation.turns if turn.speaker == "bot" for s in self.parse(turn.text)]

    def _parse_sentence(self, piece: str) -> Sentence:
        words = WORDS.findall(piece)
        things = tuple(word for word in words if word in self.topic_of)
        kind = self._kinds.get(_shape(piece, self._slot), "garbled")
        count = sum(word.isalpha() for word in words)
        sentence = Sentence(kind, things, count, piece)
        if kind != "garbled":  # cached: valid sentences are few, garbled ones unlimited
            self._parsed[piece] = sentence
        return sentence


def pick(rng: random.Random, options: Sequence[T]) -> T:
    """One option, by one number of `rng`."""
    return options[int(rng.random() * len(options))]


def _shape(sentence: str, slots: dict[str, str]) -> str:
    """A sentence with its things and adjectives replaced by slots."""
    return re.sub(r"[a-z]+", lambda word: slots.get(word.group(), word.group()), sentence)
