"""The ladder of each game: the returns of scripted players, which a trained policy is compared with.

The figures are recorded in MEASURED, and measured again by `lmgym games measure`. A player is a function of
(environment, observation, random generator). "optimal" is the best that is known against the game's opponent.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lmgym.apps.games import arena_players, toy_players, toy_text
from lmgym.apps.games.replies import unknown_id
from lmgym.apps.games.shop import Shop, guess_the_total, use_the_tools, without_prices
from lmgym.apps.games.text_arena import TextArena, random_moves, removals, squares
from lmgym.environments.protocol import POLICY, Environment, Observation
from lmgym.text import Conversation, Turn

Player = Callable[..., str]
"""of (environment, observation, np.random.Generator)"""
Script = Callable[[Conversation, np.random.Generator], str]
"""a player that sees no more than its prompt: the script of a `ScriptedGenerator`"""


@dataclass(frozen=True)
class Measured:
    """A mean return with its standard error, over so many episodes."""

    mean: float
    error: float
    episodes: int

    @staticmethod
    def of(returns: Sequence[float]) -> "Measured":
        values = np.asarray(returns, dtype=np.float64)
        error = float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else float("nan")
        return Measured(float(values.mean()), error, len(values))


@dataclass(frozen=True)
class Game:
    """A game with its scripted players, the first of which is random."""

    name: str
    about: str
    make: Callable[..., Environment]
    players: Mapping[str, Player]
    agent: str = POLICY
    """whom a player plays"""
    opponents: Mapping[str, Script] = field(default_factory=dict)
    """scripts of the other agents"""
    extra: str = ""
    """of pyproject.toml; empty: none is needed"""
    max_new_tokens: int = 8
    """of a move"""
    has_tools: bool = False
    """`make` takes the policy's tokenizer, whose template writes the tools"""

    def environment(self, tokenizer: Any = None) -> Environment:
        """A new episode's environment, for a policy of this tokenizer."""
        return self.make(tokenizer) if self.has_tools else self.make()

    def play(self, player: Player, seed: int, watch: Callable[[str, str, float], None] | None = None) -> float:
        """The return of a player in the game of a seed; `watch(agent, reply, reward)` sees the moves."""
        game, total = self.environment(), 0.0
        seen = game.reset({}, seed)
        # [seed, 0] would be the stream of `seed` itself, by which many games draw
        own, theirs = np.random.default_rng([1, seed]), np.random.default_rng([2, seed])
        while seen:
            actions = {
                agent: self.opponents[agent](conversation(observation), theirs)
                if agent in self.opponents
                else player(game, observation, own)
                for agent, observation in seen.items()
            }
            result = game.step(actions)
            total += result.rewards.get(self.agent, 0.0)
            if watch:
                for agent, reply in actions.items():
                    watch(agent, reply, result.rewards.get(agent, 0.0))
            seen = {} if result.terminated or result.truncated else result.observations
        return total

    def measure(self, player: Player, episodes: int, seed: int = 0) -> Measured:
        """The mean return over the games of the seeds from `seed` on."""
        return Measured.of([self.play(player, seed + i) for i in range(episodes)])

    @property
    def measured(self) -> dict[str, Measured]:
        """The recorded figures by player."""
        return {player: Measured(*figures) for player, figures in MEASURED.get(self.name, {}).items()}

    @property
    def reference_lines(self) -> dict[str, float]:
        """The measured returns by player, for a report."""
        return {name: one.mean for name, one in self.measured.items()}


def random_move(game: Environment, seen: Observation, rng: np.random.Generator) -> str:
    """One of the listed actions."""
    return seen.actions[int(rng.integers(len(seen.actions)))]


def conversation(seen: Observation) -> Conversation:
    """An observation's prompt; a text is one turn of the user."""
    return Conversation((Turn("user", seen.prompt),)) if isinstance(seen.prompt, str) else seen.prompt


def find_game(name: str) -> Game:
    """The game of a name. Raises InputError, with the nearest names, if there is none."""
    if name not in GAMES:
        raise unknown_id(name, GAMES, "lmgym games list")
    return GAMES[name]


GAMES: dict[str, Game] = {
    game.name: game
    for game in (
        Game("blackjack", "Gymnasium's Blackjack-v1, sab=False", toy_text.blackjack,
             {"random": random_move, "heuristic": toy_players.hit_below_17, "optimal": toy_players.basic_strategy},
             extra="gym"),
        Game("frozen_lake", "FrozenLake-v1, 4x4, not slippery", toy_text.frozen_lake,
             {"random": random_move, "heuristic": toy_players.along_the_shore, "optimal": toy_players.optimal},
             extra="gym"),
        Game("frozen_lake_slippery", "FrozenLake-v1, 4x4, slippery", lambda: toy_text.frozen_lake(True),
             {"random": random_move, "heuristic": toy_players.along_the_shore, "optimal": toy_players.optimal},
             extra="gym"),
        Game("frozen_lake_8x8", "FrozenLake-v1, 8x8, slippery", lambda: toy_text.frozen_lake(True, 8),
             {"random": random_move, "heuristic": toy_players.along_the_shore, "optimal": toy_players.optimal},
             extra="gym"),
        Game("cliff_walking", "CliffWalking-v1, 200 steps at most", toy_text.cliff_walking,
             {"random": random_move, "heuristic": toy_players.along_the_top, "optimal": toy_players.optimal},
             extra="gym"),
        Game("taxi", "Taxi-v4", toy_text.taxi,
             {"random": random_move, "heuristic": toy_players.by_the_middle_row, "optimal": toy_players.optimal},
             extra="gym"),
        Game("tic_tac_toe", "textarena's TicTacToe-v0, moving first against random", lambda: TextArena("TicTacToe-v0"),
             {"random": random_move, "heuristic": arena_players.center_first, "optimal": arena_players.minimax},
             agent="player_0", opponents={"player_1": random_moves(squares)}, extra="textarena"),
        Game("nim", "textarena's Nim-v0 (3-4-5), moving first against random", lambda: TextArena("Nim-v0"),
             {"random": random_move, "heuristic": arena_players.largest_pile, "optimal": arena_players.nim_sum},
             agent="player_0", opponents={"player_1": random_moves(removals)}, extra="textarena"),
        Game("mastermind", "textarena's Mastermind-v0", lambda: TextArena("Mastermind-v0"),
             {"random": random_move, "heuristic": arena_players.consistent_guess,
              "optimal": arena_players.most_even_guess}, extra="textarena", max_new_tokens=16),
        Game("shop", "a tool-use game: prices to look up and add, by tools", Shop,
             {"random": guess_the_total, "heuristic": without_prices, "optimal": use_the_tools}, max_new_tokens=64,
             has_tools=True),
    )
}  # fmt: skip

MEASURED: dict[str, dict[str, tuple[float, float, int]]] = {
    "blackjack": {
        "random": (-0.39584, 0.004, 50000),
        "heuristic": (-0.07918, 0.0042, 50000),
        "optimal": (-0.04898, 0.0043, 50000),
    },
    "frozen_lake": {
        "random": (0.0159, 0.0013, 10000),
        "heuristic": (0.1331, 0.0034, 10000),
        "optimal": (1, 0, 10000),
    },
    "frozen_lake_slippery": {
        "random": (0.0116, 0.0011, 10000),
        "heuristic": (0.0408, 0.002, 10000),
        "optimal": (0.7392, 0.0044, 10000),
    },
    "frozen_lake_8x8": {
        "random": (0.0022, 0.00066, 5000),
        "heuristic": (0.02, 0.002, 5000),
        "optimal": (0.64, 0.0068, 5000),
    },
    "cliff_walking": {
        "random": (-2108, 21, 1000),
        "heuristic": (-17, 0, 1000),
        "optimal": (-13, 0, 1000),
    },
    "taxi": {
        "random": (-773.81, 3, 1000),
        "heuristic": (7.655, 0.079, 1000),
        "optimal": (7.871, 0.083, 1000),
    },
    "tic_tac_toe": {
        "random": (0.275, 0.02, 2000),
        "heuristic": (0.9565, 0.0048, 2000),
        "optimal": (0.995, 0.0016, 2000),
    },
    "nim": {
        "random": (0.006, 0.022, 2000),
        "heuristic": (0.059, 0.022, 2000),
        "optimal": (1, 0, 2000),
    },
    "mastermind": {
        "random": (0.45188, 0.0058, 1000),
        "heuristic": (1, 0, 1000),
        "optimal": (1, 0, 1000),
    },
    "shop": {
        "random": (0.0028, 0.00053, 10000),
        "heuristic": (0.0127, 0.0011, 10000),
        "optimal": (1, 0, 10000),
    },
}
"""(mean return, standard error, episodes) by game and player: seeds 0, 1, 2, ..."""
