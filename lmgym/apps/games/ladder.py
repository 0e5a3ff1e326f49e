"""The ladder of each game: the returns of scripted players, which a trained policy is compared with.

The figures are recorded in MEASURED, and measured again by `lmgym games measure`. "optimal" is the best player that is
known against the game's opponent.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lmgym.apps.games import arena_players, toy_players, toy_text
from lmgym.apps.games.replies import unknown_id
from lmgym.apps.games.shop import Shop, guess_the_total, use_the_tools, without_prices
from lmgym.apps.games.text_arena import TextArena, random_moves, removals, squares
from lmgym.environments.engine import SEEDS, SeedOf, play
from lmgym.environments.episodes import RunningEpisode
from lmgym.environments.players import ActionScript, Player, ScriptPlayer, by_conversation
from lmgym.environments.protocol import POLICY, Environment, Observation
from lmgym.errors import InputError
from lmgym.generation.protocol import ReplyScript

TOGETHER = 256
"""games that are played at a time"""
WatchMove = Callable[[str, str, float], None]
"""sees (agent, reply, reward) of each move"""


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
class LadderGame:
    """A game with its scripted players, the first of which is random."""

    name: str
    about: str
    make: Callable[..., Environment]
    players: Mapping[str, ActionScript]
    agent: str = POLICY
    """the agent that a script of `players` plays"""
    opponents: Mapping[str, ReplyScript] = field(default_factory=dict)
    """scripts of the other agents"""
    extra: str = ""
    """the extra of pyproject.toml that it needs; empty: none"""
    max_new_tokens: int = 8
    """most tokens of a move"""
    has_tools: bool = False
    """`make` takes the policy's tokenizer, whose template writes the tools"""

    def environment(self, tokenizer: Any = None) -> Environment:
        """A new episode's environment, for a policy of this tokenizer."""
        return self.make(tokenizer) if self.has_tools else self.make()

    def play(self, script: ActionScript, seed: int, watch: WatchMove | None = None) -> float:
        """The return of a script in the game of a seed."""
        return self._returns(script, [seed], watch)[0]

    def measure(self, script: ActionScript, episodes: int, seed: int = 0) -> Measured:
        """The mean return over the games of the seeds from `seed` on."""
        returns: list[float] = []
        for first in range(seed, seed + episodes, TOGETHER):
            returns += self._returns(script, range(first, min(first + TOGETHER, seed + episodes)))
        return Measured.of(returns)

    def _returns(self, script: ActionScript, seeds: Sequence[int], watch: WatchMove | None = None) -> list[float]:
        # [seed, 0] would be the stream of `seed` itself, by which many games draw
        players = {name: ScriptPlayer(by_conversation(one), lambda s: [2, s]) for name, one in self.opponents.items()}
        players[self.agent] = ScriptPlayer(script, lambda seed: [1, seed])
        returns = play_games([self.environment() for _ in seeds], seeds, players, watch=watch)
        return [of_game[self.agent] for of_game in returns]

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


def play_games(
    environments: Sequence[Environment],
    seeds: Sequence[int],
    players: Mapping[str, Player],
    seed_of: SeedOf = SEEDS,
    watch: WatchMove | None = None,
) -> list[dict[str, float]]:
    """Play each environment to its end, all agents by their players: the return of each agent, by game.

    Raises InputError if a game fails.
    """
    returns: list[dict[str, float]] = [dict.fromkeys(players, 0.0) for _ in environments]

    def add(episode: RunningEpisode) -> None:
        if episode.error:
            raise InputError(f"{episode.error}; needed: a game that every player can finish")
        rewards = episode.result.rewards
        for agent, reward in rewards.items():
            returns[episode.index][agent] = returns[episode.index].get(agent, 0.0) + reward
        if watch and episode.said:
            for agent, action in episode.said[-1].items():
                watch(agent, action.text, rewards.get(agent, 0.0))

    play(environments, [{}] * len(environments), seeds, players, seed_of=seed_of, watch=add)
    return returns


def find_game(name: str) -> LadderGame:
    """The game of a name. Raises InputError, with the nearest names, if there is none."""
    if name not in GAMES:
        raise unknown_id(name, GAMES, "lmgym games list")
    return GAMES[name]


GAMES: dict[str, LadderGame] = {
    game.name: game
    for game in (
        LadderGame("blackjack", "Gymnasium's Blackjack-v1, sab=False", toy_text.blackjack,
             {"random": random_move, "heuristic": toy_players.hit_below_17, "optimal": toy_players.basic_strategy},
             extra="gym"),
        LadderGame("frozen_lake", "FrozenLake-v1, 4x4, not slippery", toy_text.frozen_lake,
             {"random": random_move, "heuristic": toy_players.along_the_shore, "optimal": toy_players.optimal},
             extra="gym"),
        LadderGame("frozen_lake_slippery", "FrozenLake-v1, 4x4, slippery", lambda: toy_text.frozen_lake(True),
             {"random": random_move, "heuristic": toy_players.along_the_shore, "optimal": toy_players.optimal},
             extra="gym"),
        LadderGame("frozen_lake_8x8", "FrozenLake-v1, 8x8, slippery", lambda: toy_text.frozen_lake(True, 8),
             {"random": random_move, "heuristic": toy_players.along_the_shore, "optimal": toy_players.optimal},
             extra="gym"),
        LadderGame("cliff_walking", "CliffWalking-v1, 200 steps at most", toy_text.cliff_walking,
             {"random": random_move, "heuristic": toy_players.along_the_top, "optimal": toy_players.optimal},
             extra="gym"),
        LadderGame("taxi", "Taxi-v4", toy_text.taxi,
             {"random": random_move, "heuristic": toy_players.by_the_middle_row, "optimal": toy_players.optimal},
             extra="gym"),
        LadderGame("tic_tac_toe", "textarena's TicTacToe-v0, moving first against random",
             lambda: TextArena("TicTacToe-v0"),
             {"random": random_move, "heuristic": arena_players.center_first, "optimal": arena_players.minimax},
             agent="player_0", opponents={"player_1": random_moves(squares)}, extra="textarena"),
        LadderGame("nim", "textarena's Nim-v0 (3-4-5), moving first against random", lambda: TextArena("Nim-v0"),
             {"random": random_move, "heuristic": arena_players.largest_pile, "optimal": arena_players.nim_sum},
             agent="player_0", opponents={"player_1": random_moves(removals)}, extra="textarena"),
        LadderGame("mastermind", "textarena's Mastermind-v0", lambda: TextArena("Mastermind-v0"),
             {"random": random_move, "heuristic": arena_players.consistent_guess,
              "optimal": arena_players.most_even_guess}, extra="textarena", max_new_tokens=16),
        LadderGame("shop", "a tool-use game: prices to look up and add, by tools", Shop,
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
