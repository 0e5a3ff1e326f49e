"""Taboo: one player describes a word without it and its related words, the other guesses it in three rounds."""

import re
from collections.abc import Mapping, Sequence
from typing import final

import numpy as np

from lmgym.apps.games.dialogue.dialogue import Dialogue, Drawn
from lmgym.apps.games.dialogue.instances import Draw, instance_of, needed_fields
from lmgym.apps.games.dialogue.records import Records
from lmgym.apps.games.dialogue.scoring import RewardKind, abort, check_reward_kind, lose, success
from lmgym.apps.games.dialogue.words import LEVELS, all_words, words_of
from lmgym.environments.protocol import Observation, StepResult, Task
from lmgym.generation.protocol import ReplyScript
from lmgym.text import Conversation

NAME = "taboo"
DESCRIBER, GUESSER = "describer", "guesser"
ROLES = (DESCRIBER, GUESSER)
ROUNDS = 3
CLUE, GUESS = re.compile(r"clue:\s*(\S.*)", re.I | re.S), re.compile(r"guess:\s*([a-z][a-z'-]*)[.!]?", re.I)
SHORTEST_PART = 4  # letters of a word that may be a part of another
SPELLED = re.compile(r"(\d+) letters, and ([a-z ]+) in front")
SUFFIXES = ("ingly", "ings", "edly", "ers", "ing", "ies", "est", "ed", "er", "es", "ly", "s")

DESCRIBE = """You play a game with a partner, who has to find a secret word from your descriptions.

Reply in one line that begins with CLUE:, as in
CLUE: it hangs in a church and rings

The secret word and the words related to it are forbidden in your clue, and so are their variants and parts. With a \
forbidden word you both lose. Your partner has {rounds} guesses, and you see each wrong one.

Secret word: {target}
Related words: {related}"""
FIND = """You play a game with a partner, who describes a secret word to you. You have {rounds} guesses, and a new \
clue before each.

Reply in one line with GUESS: and one word, as in
GUESS: bell

{clue}"""


@final
class Taboo:
    """A word to describe and to guess; the agents are "describer" and "guesser".

    Main Score is 100 / the number of guesses. A forbidden word in a clue, or three wrong guesses, lose; a reply without
    CLUE: or GUESS:, or a guess of several words, aborts. `reward`: see scoring.py.
    """

    def __init__(self, reward: RewardKind = "main_score", draws: tuple[Draw, Sequence[str]] | None = None) -> None:
        check_reward_kind(reward)
        self.reward: RewardKind = reward
        self.draws = draws or (draw, LEVELS)
        self.target = ""
        self.related: list[str] = []
        self.round = 1

    def reset(self, task: Task, seed: int) -> Mapping[str, Observation]:
        """Show the describer the word."""
        instance = instance_of(task, seed, *self.draws)
        self.target, self.related = needed_fields(instance, NAME, ("target_word", "related_word"))
        self.round = 1
        self.dialogue = Dialogue.begin(NAME, ROLES, task, instance, self.reward)
        related = ", ".join(self.related)
        self.dialogue.tell(DESCRIBER, DESCRIBE.format(rounds=ROUNDS, target=self.target, related=related))
        return self.dialogue.waiting_for(DESCRIBER).observations

    def step(self, actions: Mapping[str, str]) -> StepResult:
        """Take a clue or a guess."""
        [(player, reply)] = actions.items()
        said = self.dialogue.hear(player, reply)
        return self._take_clue(said) if player == DESCRIBER else self._take_guess(said)

    def _take_clue(self, said: str) -> StepResult:
        if not (found := CLUE.fullmatch(said)):
            return self.dialogue.end(abort(DESCRIBER), "invalid format", "no CLUE:")
        if broken := forbidden_in(found[1], (self.target, *self.related)):
            return self.dialogue.end(lose(), "invalid clue", f"{broken[0]!r} is a variant or part of {broken[1]!r}")
        self.dialogue.note("valid clue", found[1])
        clue = f"CLUE: {found[1]}"
        self.dialogue.tell(GUESSER, clue if self.round > 1 else FIND.format(rounds=ROUNDS, clue=clue))
        return self.dialogue.waiting_for(GUESSER)

    def _take_guess(self, said: str) -> StepResult:
        if not (found := GUESS.fullmatch(said)):
            return self.dialogue.end(abort(GUESSER), "invalid format", "no GUESS: with one word")
        if found[1].lower() == self.target.lower():
            return self.dialogue.end(success(100 / self.round), "correct guess", found[1])
        self.dialogue.note("wrong guess", found[1])
        if self.round == ROUNDS:
            return self.dialogue.end(lose(), "max rounds reached")
        self.round += 1
        self.dialogue.recorder.next_turn()
        self.dialogue.tell(DESCRIBER, f"GUESS: {found[1]}")
        return self.dialogue.waiting_for(DESCRIBER)

    def records(self) -> Records:
        """clembench's records and scores, once the episode has ended."""
        return self.dialogue.records()


def draw(rng: np.random.Generator, experiment: str) -> Drawn:
    """A word of one of LEVELS."""
    words = words_of(experiment)
    word = words[int(rng.integers(len(words)))]
    return Drawn(word.text, {"target_word": word.text, "related_word": list(word.related)})


def forbidden_in(clue: str, forbidden: tuple[str, ...]) -> tuple[str, str] | None:
    """(a word of the clue, the forbidden word that it is a variant or a part of); None if there is none."""
    for said in re.findall(r"[^\W\d_]+", clue.lower()):
        for word in forbidden:
            if is_variant(said, word.lower()):
                return said, word
    return None


def is_variant(one: str, other: str) -> bool:
    """True of two words with one stem, and if one begins or ends with the other, of four letters or more."""
    if stem(one) == stem(other):
        return True
    short, long = sorted((one, other), key=len)
    return len(short) >= SHORTEST_PART and (long.startswith(short) or long.endswith(short))


def stem(word: str) -> str:
    """A word without a common English suffix; three letters are kept at least."""
    for suffix in SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            word = word.removesuffix(suffix)
            break
    if len(word) > 3 and word[-1] == word[-2]:
        word = word[:-1]
    return word[:-1] if len(word) > 3 and word[-1] in "eyi" else word


def describe(conversation: Conversation, rng: np.random.Generator) -> str:
    """The word's clue; after a wrong guess its letters' number and the first ones."""
    found = re.search(r"Secret word: (\S+)", conversation.turns[0].text)
    target = found[1] if found else ""
    guesses = len(conversation.turns) // 2
    known = all_words().get(target)
    if guesses == 0 and known:
        return f"CLUE: {known.clue}"
    return f"CLUE: {spelled(target, guesses + 1)}"


def spelled(word: str, letters: int) -> str:
    """A clue that gives the number of letters and the first ones; SPELLED reads it."""
    return f"{len(word)} letters, and {' '.join(word[:letters])} in front"


def guess(conversation: Conversation, rng: np.random.Generator) -> str:
    """The word whose own clue has most in common with the clues, of those that fit the letters given."""
    clues = [
        line
        for turn in conversation.turns
        if turn.speaker == "user"
        for line in turn.text.splitlines()
        if line.startswith("CLUE: ")
    ]
    wrong = {turn.text.removeprefix("GUESS: ") for turn in conversation.turns if turn.speaker == "bot"}
    said = {stem(word) for clue in clues for word in re.findall("[a-z]+", clue.lower())}
    letters = SPELLED.search(clues[-1])

    def fit(word: str) -> int:
        known = all_words()[word]
        own = {stem(w) for w in re.findall("[a-z]+", known.clue.lower())}
        fits = bool(letters and len(word) == int(letters[1]) and word.startswith(letters[2].replace(" ", "")))
        return 100 * fits + len(own & said) - 1000 * (word in wrong)

    return f"GUESS: {max(all_words(), key=fit)}"


def say_the_word(conversation: Conversation, rng: np.random.Generator) -> str:
    """A describer that says the forbidden word."""
    return f"CLUE: {conversation.turns[0].text.split('Secret word: ')[1].split()[0]}"


SCRIPTS: dict[str, dict[str, ReplyScript]] = {
    "winner": {DESCRIBER: describe, GUESSER: guess},
    "loser": {DESCRIBER: say_the_word, GUESSER: lambda conversation, rng: "GUESS: nothing"},
    "rule_breaker": {
        DESCRIBER: lambda conversation, rng: "It is a thing.",
        GUESSER: lambda conversation, rng: "GUESS: one of two",
    },
}
