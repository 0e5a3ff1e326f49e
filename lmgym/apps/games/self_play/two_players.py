"""The games of two players that need no other library, with scripted players."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from lmgym.apps.games.alternating import SIDES, Alternating, Rules, minimax, one_move_ahead, random_move
from lmgym.apps.games.nim import Nim
from lmgym.apps.games.replies import unknown_id
from lmgym.apps.games.tic_tac_toe import TicTacToe
from lmgym.environments.engine import play
from lmgym.environments.players import ScriptPlayer
from lmgym.environments.protocol import Environment, Observation
from lmgym.errors import InputError
from lmgym.generation.protocol import ReplyScript
from lmgym.text import Conversation

RANDOM = "random"
START_MOVES = 2000


@dataclass(frozen=True)
class TwoPlayerGame:
    """A zero-sum game: both agents act in every episode, and their rewards add up to 0."""

    name: str
    make: Callable[[], Environment]
    sides: tuple[str, str] = SIDES
    """the names of the two agents"""
    scripts: Mapping[str, ReplyScript] = field(default_factory=dict)
    """scripted players of either side by name; "random" among them"""
    max_new_tokens: int = 8
    """most tokens of a move"""

    def script(self, name: str) -> ReplyScript:
        """The scripted player of a name. Raises InputError if there is none."""
        if name not in self.scripts:
            known = ", ".join(self.scripts) or "none"
            raise InputError(f"{self.name} has no scripted player {name!r}; needed: one of {known}")
        return self.scripts[name]


def of_rules(name: str, rules: Rules, max_new_tokens: int) -> TwoPlayerGame:
    """A game of rules, with a random player, one that looks one move ahead, and one that plays perfectly."""
    players = {RANDOM: random_move, "heuristic": one_move_ahead, "optimal": minimax}
    scripts = {player: partial(script, rules) for player, script in players.items()}
    return TwoPlayerGame(name, lambda: Alternating(rules), SIDES, scripts, max_new_tokens)


TWO_PLAYER_GAMES = {game.name: game for game in (of_rules("tic_tac_toe", TicTacToe(), 2), of_rules("nim", Nim(), 3))}


def find_two_player_game(name: str) -> TwoPlayerGame:
    """The game of a name. Raises InputError, with the nearest names, if there is none."""
    if name not in TWO_PLAYER_GAMES:
        raise unknown_id(name, TWO_PLAYER_GAMES, "lmgym's list of games for two players")
    return TWO_PLAYER_GAMES[name]


def make_start(name: str, folder: str | Path, seed: int = 0) -> Path:
    """`folder` with a small policy from scratch, made on first use. It knows the words of the game and nothing else:
    over the listed moves it plays at random, over tokens it says no move.
    """
    from lmgym.apps.games.small_policy import untrained  # here: torch takes seconds to import
    from lmgym.environments.random_walks_model import made_once

    game = find_two_player_game(name)
    return made_once(Path(folder), lambda: untrained(random_moves(game, START_MOVES, seed), seed))


def random_moves(game: TwoPlayerGame, moves: int, seed: int = 0) -> list[tuple[Conversation, str]]:
    """At least so many (prompt, move) of random players of both sides."""
    found: list[tuple[Conversation, str]] = []
    script, draws = game.script(RANDOM), np.random.default_rng(seed)

    def record(environment: Environment, seen: Observation, own: np.random.Generator) -> str:
        found.append((seen.conversation, script(seen.conversation, draws)))
        return found[-1][1]

    number, players = seed, dict.fromkeys(game.sides, ScriptPlayer(record, lambda seed: [seed]))
    while len(found) < moves:
        play([game.make()], [{}], [number], players, stops=(Exception,))
        number += 1
    return found
