"""A word of five letters in six guesses, with the colour of each letter; plain, with a clue, and with a critic."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, final

import numpy as np

from lmgym.apps.games.dialogue.dialogue import Dialogue, Drawn
from lmgym.apps.games.dialogue.instances import Draw, instance_of, needed_fields
from lmgym.apps.games.dialogue.records import Records
from lmgym.apps.games.dialogue.scoring import RewardKind, abort, check_reward_kind, lose, success
from lmgym.apps.games.dialogue.words import LEVELS, words_of
from lmgym.environments.protocol import Observation, StepResult, Task
from lmgym.errors import InputError, shown

Variant = Literal["plain", "clue", "critic"]
NAMES: dict[str, str] = {"plain": "word_guess", "clue": "word_guess_clue", "critic": "word_guess_critic"}
GUESSER, CRITIC = "guesser", "critic"
LETTERS, GUESSES = 5, 6
PLAIN_SCORES = {1: 100.0, 2: 100.0, 3: 100.0, 4: 50.0, 5: 30.0, 6: 20.0}
"""clembench's, by the number of guesses"""
GREEN, YELLOW, RED = "green", "yellow", "red"
GUESS = re.compile(r"^[ \t]*guess:[ \t]*([a-z]{5})[ \t]*$", re.I | re.M)
OPINION = re.compile(r"^[ \t]*agree:[ \t]*(yes|no)[ \t]*$", re.I | re.M)
TAGS = {"guess": re.compile(r"^[ \t]*guess:", re.I | re.M), "agree": re.compile(r"^[ \t]*agree:", re.I | re.M)}

RULES = """Find a secret English word of five letters in at most six guesses. After each guess you see a colour for \
each letter: green for the right letter in the right place, yellow for a letter that is elsewhere in the word, red for \
one that is not in it.

Reply with a line of guess: and your word, as in
guess: stove
A line with your reasons, explanation: and a sentence, may stand before it."""
WITH_CRITIC = """A critic sees your guess before it counts and tells you whether it agrees. You then reply in the same \
form with your final guess, the same word or another."""
CRITIC_RULES = """A player looks for a secret English word of five letters, with at most six guesses. You are a \
critic: you know the clue, and see each guess before it counts. Say whether you agree with it.

Reply with a line of agree: and yes or no, as in
agree: no
A line with your reasons, explanation: and a sentence, may stand before it."""


@final
class WordGuess:
    """A secret word; the agents are "guesser", and in the variant with a critic "critic".

    Main Score by the guess: 100 for the first three, then 50, 30, 20 in the plain variant, otherwise 100 / guesses. Any
    five letters are a guess. A reply without exactly one line of the form asked for aborts. `reward`: see scoring.py.
    """

    def __init__(
        self,
        variant: Variant = "plain",
        reward: RewardKind = "main_score",
        draws: tuple[Draw, Sequence[str]] | None = None,
    ) -> None:
        if variant not in NAMES:
            raise InputError(f"variant={shown(variant)}; needed: {', '.join(NAMES)}")
        check_reward_kind(reward)
        self.variant, self.name = variant, NAMES[variant]
        self.reward: RewardKind = reward
        self.draws = draws or (draw, LEVELS)
        self.target, self.clue = "", ""
        self.guesses, self.proposed = 0, ""

    def reset(self, task: Task, seed: int) -> Mapping[str, Observation]:
        """Give the guesser the rules, and the clue if there is one."""
        instance = instance_of(task, seed, *self.draws)
        self.target, self.clue = needed_fields(instance, self.name, ("target_word", "target_word_clue"))
        self.guesses, self.proposed = 0, ""
        roles = (GUESSER, CRITIC) if self.variant == "critic" else (GUESSER,)
        self.dialogue = Dialogue.begin(self.name, roles, task, instance, self.reward)
        parts = [RULES, *([WITH_CRITIC] if self.variant == "critic" else [])]
        parts += [] if self.variant == "plain" else [f"clue: {self.clue}"]
        self.dialogue.tell(GUESSER, "\n\n".join(parts))
        return self.dialogue.waiting_for(GUESSER).observations

    def step(self, actions: Mapping[str, str]) -> StepResult:
        """Take a guess, or the critic's opinion."""
        [(player, reply)] = actions.items()
        said = self.dialogue.hear(player, reply)
        if player == CRITIC:
            return self._take_opinion(said)
        if (guess := read_line(said, "guess")) is None:
            return self.dialogue.end(abort(GUESSER), "invalid format", "no line of guess: and five letters")
        if self.variant == "critic" and not self.proposed:
            return self._show_critic(guess)
        return self._take_guess(guess)

    def _show_critic(self, guess: str) -> StepResult:
        self.dialogue.note("valid guess", guess)
        self.proposed = guess
        shown_guess = f"guess: {guess}"
        is_first = CRITIC not in self.dialogue.views
        self.dialogue.tell(CRITIC, f"{CRITIC_RULES}\n\nclue: {self.clue}\n{shown_guess}" if is_first else shown_guess)
        return self.dialogue.waiting_for(CRITIC)

    def _take_opinion(self, said: str) -> StepResult:
        if (opinion := read_line(said, "agree")) is None:
            return self.dialogue.end(abort(CRITIC), "invalid format", "no line of agree: and yes or no")
        self.dialogue.note("valid opinion", opinion)
        self.dialogue.tell(GUESSER, f"The critic says:\n{said}\nYour final guess?")
        return self.dialogue.waiting_for(GUESSER)

    def _take_guess(self, guess: str) -> StepResult:
        self.guesses += 1
        self.proposed = ""
        if guess == self.target:
            score = PLAIN_SCORES[self.guesses] if self.variant == "plain" else round(100 / self.guesses, 2)
            return self.dialogue.end(success(score), "correct guess", guess)
        colours = feedback(guess, self.target)
        self.dialogue.note("wrong guess", f"{guess}: {colours}")
        if self.guesses == GUESSES:
            return self.dialogue.end(lose(), "max guesses reached")
        self.dialogue.recorder.next_turn()
        if self.variant == "critic":
            self.dialogue.tell(CRITIC, f"feedback: {colours}")
        self.dialogue.tell(GUESSER, f"feedback: {colours}")
        return self.dialogue.waiting_for(GUESSER)

    def records(self) -> Records:
        """clembench's records and scores, once the episode has ended."""
        return self.dialogue.records()


def draw(rng: np.random.Generator, experiment: str) -> Drawn:
    """A word of five letters of one of LEVELS."""
    words = words_of(experiment, LETTERS)
    word = words[int(rng.integers(len(words)))]
    return Drawn(word.text, {"target_word": word.text, "target_word_clue": word.clue})


def read_line(said: str, tag: str) -> str | None:
    """The text after the tag, in small letters; None unless exactly one line has the tag, and in the form asked for."""
    found = (GUESS if tag == "guess" else OPINION).findall(said)
    return found[0].lower() if len(found) == len(TAGS[tag].findall(said)) == 1 else None


def feedback(guess: str, target: str) -> str:
    """The letters with their colours, as in `s<red> t<green>`.

    A letter is green or yellow at most as often as the word has it: greens first, then from the left.
    """
    rest = Counter(t for g, t in zip(guess, target, strict=True) if g != t)
    colours = []
    for letter, right in zip(guess, target, strict=True):
        if letter == right:
            colours.append(GREEN)
        elif rest[letter]:
            rest[letter] -= 1
            colours.append(YELLOW)
        else:
            colours.append(RED)
    return " ".join(f"{letter}<{colour}>" for letter, colour in zip(guess, colours, strict=True))
