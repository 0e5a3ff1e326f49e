"""What can be said in a world: templates to speak by, and a parser that reads any text back.

A text is judged by what it says, not by who made it: bots, scripts and trained policies go through the same parser,
and a sentence that no template could have made is garbled.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

from lmgym.environments.vocabulary import Vocabulary

# {n} and {m} are things, {a} is an adjective; kinds are what the utility distinguishes
BOT_TEMPLATES = MappingProxyType(
    {
        "statement": (
            "{n} are {a}.",
            "i saw {n} yesterday.",
            "i often think about {n}.",
            "my friend told me about {n}.",
            "{n} go well with {m}.",
            "there is a story about {n} and {m}.",
            "i could talk about {n} all day.",
        ),
        "question": (
            "what do you think of {n}?",
            "when did you last see {n}?",
            "do you prefer {n} or {m}?",
            "are {n} always {a}?",
        ),
        "like": ("i like {n}.", "i love {n}."),
        "dislike": ("i do not like {n}.", "i hate {n}."),
        "dull": ("ok.", "i see.", "fine.", "maybe.", "i do not know.", "sure."),
        "rude": ("you are boring.", "that is stupid.", "who cares.", "leave me alone."),
        "warm": ("that is lovely.", "thank you for telling me.", "i am glad you said that."),
        "small_talk": (
            "it is getting late here.",
            "i had tea this morning.",
            "the week went by fast.",
            "i slept well last night.",
            "time flies.",
        ),
    }
)
USER_TEMPLATES = MappingProxyType(
    {
        "opening": ("i want to talk about {n}.", "hi, let us talk about {n}.", "hello, i was thinking of {n}."),
        "tell": (
            "i keep thinking about {n}.",
            "i like {n} more than {m}.",
            "yesterday i saw {n} and {m}.",
            "{n} were {a} this time.",
            "my sister gave me {n}.",
        ),
        "ask": ("do you like {n}?", "tell me about {n}.", "what about {n} and {m}?"),
        "chatter": ("i had a long day.", "it is raining.", "i am at home now.", "my brother is here too."),
    }
)
PIECES = re.compile(r"[^.?!]*[.?!]|[^.?!]+$")
WORDS = re.compile(r"[a-z]+|[^a-z\s]")


@dataclass(frozen=True)
class Sentence:
    """One parsed sentence: its kind ("garbled" where no template made it), the things that it names, its words."""

    kind: str
    things: tuple[str, ...]
    words: int
    text: str


class Grammar:
    """Speaks and reads the language of one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.topic_of = vocabulary.topic_of
        self._slot = dict.fromkeys(self.topic_of, "{n}") | dict.fromkeys(vocabulary.adjectives, "{a}")
        self._kinds = {
            _shape(template.replace("{m}", "{n}"), {}): kind
            for templates in (USER_TEMPLATES, BOT_TEMPLATES)  # what both may say is judged as the bot's
            for kind, group in templates.items()
            for template in group
        }
        self._parsed: dict[str, Sentence] = {}

    def say(self, rng: random.Random, templates: Sequence[str], topic: str, thing: str | None = None) -> str:
        """One sentence on a topic, about `thing` where that is given."""
        template = templates[int(rng.random() * len(templates))]
        if "{n}" not in template:
            return template
        things = self.vocabulary.topics[topic]
        first = thing or things[int(rng.random() * len(things))]
        second = first
        while second == first:
            second = things[int(rng.random() * len(things))]
        adjectives = self.vocabulary.adjectives
        return template.format(n=first, m=second, a=adjectives[int(rng.random() * len(adjectives))])

    def parse(self, text: str) -> list[Sentence]:
        """The sentences of a text, case and white space aside."""
        pieces = (" ".join(piece.split()) for piece in PIECES.findall(text.lower()))
        return [self._parsed.get(piece) or self._parse_sentence(piece) for piece in pieces if piece]

    def _parse_sentence(self, piece: str) -> Sentence:
        words = WORDS.findall(piece)
        things = tuple(word for word in words if word in self.topic_of)
        kind = self._kinds.get(_shape(piece, self._slot), "garbled")
        count = sum(word.isalpha() for word in words)
        sentence = Sentence(kind, things, count, piece)
        if kind != "garbled":  # a finite language: what can be said twice is kept, noise is not
            self._parsed[piece] = sentence
        return sentence


def _shape(sentence: str, slots: dict[str, str]) -> str:
    """A sentence with its things and adjectives as slots."""
    return re.sub(r"[a-z]+", lambda word: slots.get(word.group(), word.group()), sentence)
