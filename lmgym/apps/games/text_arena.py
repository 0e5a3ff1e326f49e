"""Games of textarena as environments: any of its ids, for one player or several.

textarena is an extra: `pip install 'lmgym[textarena]'`. Its games draw from the global random state: each has one of
its own here. Games that pay in part (Mastermind, GuessTheNumber) have a reward between 0 and 1: `info` counts wins.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import permutations
from typing import Any, final

import numpy as np

from lmgym.apps.games.replies import MAX_STEPS, OwnRandomState, import_extra, unknown_id
from lmgym.environments.protocol import POLICY, Observation, StepResult, Task
from lmgym.errors import InputError, one_line
from lmgym.text import Conversation, Turn

MOST_PLAYERS = 15
Legal = Callable[[str], Sequence[str]]
"""the replies that are moves, from the text of an observation; empty: any text"""


@final
class TextArena:
    """An episode of `textarena.make(game_id)`; the task is ignored.

    One player is the agent "policy"; several are "player_0", "player_1", ... and act in turn; None: the fewest that the
    game takes. The prompt is the text
    that textarena shows, with all moves so far. textarena ends a game at a player's second illegal move and rewards at
    the end only. Truncated after `max_steps` moves. `info`: steps, and for each player whether its reward was 1.
    """

    def __init__(
        self, game_id: str, players: int | None = None, legal: Legal | None = None, max_steps: int = 200
    ) -> None:
        MAX_STEPS.check("max_steps", max_steps)
        arena = import_extra("textarena", "textarena")
        known = arena.envs.registration.ENV_REGISTRY
        if game_id not in known:
            raise unknown_id(game_id, known, "textarena")
        self.players = players or fewest_players(game_id)
        self.agents = [POLICY] if self.players == 1 else [f"player_{i}" for i in range(self.players)]
        self.legal = legal or LEGAL.get(game_id.partition("-")[0], _any_text)
        self.max_steps, self.steps = max_steps, 0
        self.random = OwnRandomState()
        self.random.seed(0)
        with self.random.active():
            self.game: Any = arena.make(game_id)
        self.acted: set[str] = set()

    def reset(self, task: Task, seed: int) -> Mapping[str, Observation]:
        """Begin a game."""
        self.random.seed(seed)
        self.steps, self.acted = 0, set()
        with self.random.active():
            self.game.reset(num_players=self.players, seed=seed)
            return self._shown()

    def step(self, actions: Mapping[str, str]) -> StepResult:
        """Take the move of the player whose turn it is."""
        [(agent, reply)] = actions.items()
        self.acted.add(agent)
        self.steps += 1
        with self.random.active():
            done, _ = self.game.step(reply)
            rewards, _ = self.game.close() if done else ({}, {})
            shown = {} if done else self._shown()
        truncated = not done and self.steps >= self.max_steps
        # a player who never acted has no step to reward
        earned = {self.agents[i]: float(x) for i, x in (rewards or {}).items() if self.agents[i] in self.acted}
        info = {"steps": float(self.steps)} | {f"{name}_won": float(x >= 1) for name, x in earned.items()}
        return StepResult(shown, earned, done, truncated, info)

    def _shown(self) -> dict[str, Observation]:
        player, text = self.game.get_observation()
        prompt = Conversation((Turn("user", text.strip()),))
        return {self.agents[player]: Observation(prompt, tuple(self.legal(text)))}


@lru_cache
def fewest_players(game_id: str) -> int:
    """The smallest number of players that a game begins with; textarena refuses other numbers by its own errors."""
    arena, state = import_extra("textarena", "textarena"), OwnRandomState()
    why = ""
    for players in range(1, MOST_PLAYERS + 1):
        state.seed(0)
        try:
            with state.active():
                arena.make(game_id).reset(num_players=players, seed=0)
        except (AssertionError, ValueError) as error:
            why = one_line(str(error))
        else:
            return players
    raise InputError(f"{game_id} begins with no number of players up to {MOST_PLAYERS} ({why}); needed: players=N")


def random_moves(legal: Legal) -> Callable[[Conversation, np.random.Generator], str]:
    """A script for a `ScriptedGenerator` that plays random legal moves: an opponent."""

    def move(conversation: Conversation, rng: np.random.Generator) -> str:
        moves = legal(conversation.turns[-1].text)
        return moves[int(rng.integers(len(moves)))]

    return move


def squares(text: str) -> list[str]:
    """TicTacToe's moves."""
    return re.findall(r"'(\[\d+\])'", text.rpartition("Available Moves:")[2])


def piles(text: str) -> list[int]:
    """Nim's piles."""
    return [int(size) for size in re.findall(r"pile \d+: (\d+)", text.rpartition("Current Pile:")[2])]


def removals(text: str) -> list[str]:
    """Nim's moves: a pile's number and how many to take."""
    return [f"[{i} {taken}]" for i, size in enumerate(piles(text)) for taken in range(1, size + 1)]


def guesses(text: str) -> list[str]:
    """Mastermind's codes that were not guessed yet; empty where digits may repeat."""
    found = re.search(r"code that is (\d+) digits long, each digit from 1 to (\d+), with no duplicates", text)
    if not found:
        return []
    length, digits = map(int, found.groups())
    done = set(re.findall(r"Submitted \[([\d ]+)\]", text))
    codes = (" ".join(map(str, code)) for code in permutations(range(1, digits + 1), length))
    return [f"[{code}]" for code in codes if code not in done]


def _any_text(text: str) -> Sequence[str]:
    return ()


LEGAL: dict[str, Legal] = {"TicTacToe": squares, "Nim": removals, "Mastermind": guesses}
