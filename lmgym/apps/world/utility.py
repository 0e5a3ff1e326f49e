"""The hidden utility of a reply: features read from the text, and their weights for a user.

The author of a reply does not matter. A scorer must find these features in the text by itself; most of the utility
lies in the relation of a reply to its context (topic, persona, earlier turns), which no bag of words shows.
"""

from collections.abc import Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from lmgym.apps.world.grammar import Grammar, Sentence
from lmgym.text import Conversation

# in units of the utility, for a user of average taste
WEIGHTS = MappingProxyType(
    {
        "on_topic": 1.2,  # share of the things it names that belong to the topic of the user's last message
        "off_topic": -1.2,  # share that do not
        "echo": 0.1,  # names a thing that the user just named
        "curious": 0.3,  # asks a question about the user's topic
        "true_to_persona": 0.1,  # likes what the persona likes, dislikes what it dislikes
        "contradiction": -0.45,  # the opposite
        "repetition": -0.5,  # share of its sentences that repeat one of this reply or of the visible ones
        "rude": -1.8,  # any rude sentence
        "dull": -1.0,  # share of dull sentences
        "warm": 0.3,  # any warm sentence
        "too_long": -0.3,  # words above LONG_WORDS, in steps of LONG_STEP, at most LONG_STEPS of them
        "garbled": -1.0,  # share of sentences that fit no template
    }
)
FEATURES = tuple(WEIGHTS)
LONG_WORDS, LONG_STEP, LONG_STEPS = 11, 4, 4
# mean of each feature over the replies of the world's bots: the level that users are used to
USUAL = np.array([0.58, 0.25, 0.39, 0.23, 0.07, 0.07, 0.03, 0.06, 0.16, 0.12, 0.23, 0.02])
SCALE = 1.43  # brings a utility to a standard deviation of about 1


def features(grammar: Grammar, conversation: Conversation, reply: str) -> NDArray[np.float64]:
    """FEATURES[12] of a reply to a conversation that ends in a user's turn; an empty reply is one garbled sentence."""
    sentences = grammar.parse(reply)
    named = set(grammar.named_things(conversation))
    topics = {grammar.topic_of[thing] for thing in named}
    # opinions may be on anything: they can count as on topic, but never as off topic
    related = [
        (thing in named, grammar.topic_of[thing] in topics)
        for s in sentences
        for thing in s.things
        if s.kind not in ("like", "dislike") or grammar.topic_of[thing] in topics
    ]
    on = sum(same for _, same in related) / max(1, len(related))
    kinds = [s.kind for s in sentences]
    share = 1 / max(1, len(kinds))
    words = sum(s.words for s in sentences)
    true, false = _persona(grammar, conversation.persona, sentences)
    return np.array(
        [
            on,
            (1 - on) if related else 0.0,
            any(echoed for echoed, _ in related),
            any(s.kind == "question" and any(grammar.topic_of[t] in topics for t in s.things) for s in sentences),
            true,
            false,
            _repeated(sentences, grammar.bot_sentences(conversation)) * share,
            "rude" in kinds,
            kinds.count("dull") * share,
            "warm" in kinds,
            min(max(0, words - LONG_WORDS) / LONG_STEP, LONG_STEPS),
            kinds.count("garbled") * share if kinds else 1.0,
        ],
        dtype=np.float64,
    )


def utility(rows: NDArray[np.float64], tastes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Utility[n] of features[n, 12] for users whose tastes[n, 12] scale the weights (1 is average).

    A usual reply has utility 0 for all tastes: strong tastes increase the differences, not the level.
    """
    return ((rows - USUAL) * tastes) @ np.array(list(WEIGHTS.values())) / SCALE


def _persona(grammar: Grammar, persona: str, sentences: Sequence[Sentence]) -> tuple[bool, bool]:
    """(True if a reply agrees with the persona, True if it contradicts the persona)."""
    parts = persona.lower().replace(".", " ").partition(", not ")
    likes, dislikes = ({word for word in part.split() if word in grammar.topic_of} for part in parts[::2])
    liked, disliked = ({t for s in sentences if s.kind == kind for t in s.things} for kind in ("like", "dislike"))
    return bool(liked & likes or disliked & dislikes), bool(liked & dislikes or disliked & likes)


def _repeated(sentences: Sequence[Sentence], earlier: Sequence[str]) -> int:
    """The number of sentences that repeat an earlier one; short ones count too."""
    seen, repeated = set(earlier), 0
    for sentence in sentences:
        repeated += sentence.text in seen
        seen.add(sentence.text)
    return repeated
