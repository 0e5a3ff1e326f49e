"""Scripted players of the word game: those that win, lose and break its rules."""

import re
from collections import Counter

import numpy as np

from lmgym.apps.games.dialogue.word_guess import CRITIC, GUESSER, LETTERS, feedback
from lmgym.apps.games.dialogue.words import LEVELS, Word, words_of
from lmgym.generation.protocol import ReplyScript
from lmgym.text import Conversation

WORDS = tuple(word for level in LEVELS for word in words_of(level, LETTERS))
FEEDBACK = re.compile(r"feedback: ((?:[a-z]<[a-z]+> ?)+)")


def candidates(conversation: Conversation) -> list[Word]:
    """The words that all feedback, and the clue if there is one, leave."""
    text = "\n".join(turn.text for turn in conversation.turns if turn.speaker == "user")
    clues = re.findall(r"^clue: (.*)$", text, re.M)
    seen = [(re.sub(r"<[a-z]+> ?", "", colours), colours.strip()) for colours in FEEDBACK.findall(text)]
    left = [w for w in WORDS if all(feedback(guess, w.text) == colours for guess, colours in seen)]
    return [w for w in left if w.clue in clues] or left


def guess(conversation: Conversation, rng: np.random.Generator) -> str:
    """The candidate with the most frequent letters among the candidates."""
    left = candidates(conversation)
    counts = Counter(letter for word in left for letter in set(word.text))
    best = max(left, key=lambda word: sum(counts[letter] for letter in set(word.text)), default=None)
    return f"guess: {best.text if best else 'stove'}"


def agree_with_candidates(conversation: Conversation, rng: np.random.Generator) -> str:
    """Agrees with a guess that the clue and all feedback leave."""
    proposed = conversation.turns[-1].text.rsplit("guess: ", 1)[-1].strip()
    return f"agree: {'yes' if proposed in [word.text for word in candidates(conversation)] else 'no'}"


SCRIPTS: dict[str, dict[str, ReplyScript]] = {
    "winner": {GUESSER: guess, CRITIC: agree_with_candidates},
    "loser": {GUESSER: lambda conversation, rng: "guess: fuzzy", CRITIC: lambda conversation, rng: "agree: no"},
    "rule_breaker": {
        GUESSER: lambda conversation, rng: "guess: letters",
        CRITIC: lambda conversation, rng: "agree: perhaps",
    },
}
