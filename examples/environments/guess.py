"""A game of one player: find the number from 1 to 9 in four tries.

python3 examples/environments/guess.py          makes outputs/guesser, a small policy that says numbers at random
lmgym train grpo examples/environments/guess.py:Guess --model outputs/guesser --max_new_tokens 2 --learning_rate 1e-3
"""

from pathlib import Path

from lmgym.apps.games.small_policy import imitate
from lmgym.environments.protocol import POLICY, Observation, StepResult
from lmgym.environments.random_walks_model import made_once
from lmgym.text import Conversation, Turn


class Guess:
    """Find the number from 1 to 9 in four tries."""

    def reset(self, task, seed):
        self.number, self.tries = seed % 9 + 1, 0
        self.turns = [Turn("user", "A number from 1 to 9?")]
        return self.ask()

    def ask(self):
        return {POLICY: Observation(Conversation(tuple(self.turns), persona="You guess numbers."))}

    def step(self, actions):
        guess, self.tries = actions[POLICY].strip(), self.tries + 1
        correct = guess == str(self.number)
        if correct or self.tries == 4:
            return StepResult({}, {POLICY: float(correct)}, terminated=True, info={"tries": self.tries})
        hint = "higher" if guess.isdigit() and int(guess) < self.number else "lower"
        self.turns += [Turn("bot", guess), Turn("user", f"Try {hint}.")]
        return StepResult(self.ask())


def start():
    """A small policy that says numbers at random."""
    moves = []
    for seed in range(30):
        game = Guess()
        asked = game.reset({}, seed)
        while asked:
            moves.append((asked[POLICY].prompt, str(1 + (seed + 7 * len(moves)) % 9)))
            asked = game.step({POLICY: moves[-1][1]}).observations
    return imitate(moves, steps=20)


if __name__ == "__main__":
    made_once(Path("outputs/guesser"), start)
